"""The seed's model classes, their sharded layers and the attention backends."""
