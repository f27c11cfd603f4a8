"""From a model name to tensors in the orientation the model asks for."""
