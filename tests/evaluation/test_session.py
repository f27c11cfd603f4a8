"""What a test can do with a program's objects, and a program with a test's functions."""

from __future__ import annotations

import pytest

from santagen.evaluation.execution import Pool
from santagen.evaluation.outcomes import Outcome, ProgramTest

PROGRAM = """
import operator
class Node:
    count = 0
    def __init__(self, data, *rest):
        self.data, self.left, self.right = data, None, None
        self.items = {"a": [data]}
        Node.count += 1
    def height(self):
        return 1 + max(node.height() if node else 0 for node in (self.left, self.right))
    def __len__(self): return self.height()
    def __getitem__(self, key): return self.items[key]
    def __setitem__(self, key, value): self.items[key] = value
    def __contains__(self, key): return key in self.items
    def __iter__(self): return iter([1, self])
    def __str__(self): return f"Node {self.data}"
def make(data): return Node(data)
def same(node): return node
def height(node): return node.height()
def apply(function, *args): return function(*args)
def count(): yield from (1, 2)
def whole(node): return [node, {"n": node}]
"""
NAMES = ("Node", "make", "same", "height", "apply", "count", "whole")


def run(pool: Pool, test: str, program: str = PROGRAM) -> Outcome:
    return pool.run([ProgramTest(program, test=test, entry=NAMES)])[0]


@pytest.mark.parametrize(
    "test",
    [
        "root = Node(1)\nroot.left = Node(2)\nroot.left.left = make(3)\nassert height(root) == 3",
        "n = Node(7)\nassert n.data == 7 and n.height() == len(n) == 1 and str(n) == 'Node 7'",
        "n = Node(7)\nn['b'] = (1, 2)\nassert n['b'] == (1, 2) and 'b' in n and 'c' not in n",
        "n = make(1)\nassert same(n) is n and list(n) == [1, n] and whole(n) == [n, {'n': n}]",
        "n = make(1)\nassert isinstance(n, Node) and not isinstance(1, Node) and n != make(1)",
        "Node(1)\nNode(2)\nassert Node.count == 2",
        "assert list(count()) == [1, 2] and next(count()) == 1",
        "assert apply(lambda a, b: a + b, 1, 2) == 3 and apply(len, 'abc') == 3",
        "import math\nassert apply(math.sqrt, 4) == 2.0 and apply(math.gcd, 4, 6) == 2",
        "assert apply(lambda: make(5)).data == 5 and apply(make, 5).data == 5",
        "assert apply(apply, lambda x: x, 4) == 4",
        "f = lambda: 1\nassert same(f) is f and apply(same, f) is f",
        "got = []\ndef take(x): got.append(x)\napply(take, [1])\nassert got == [[1]]",
        "def no(): raise KeyError('k')\ntry:\n    apply(no)\n    assert 0\nexcept KeyError: pass",
        "try:\n    make(1).nothing\n    assert 0\nexcept AttributeError:\n    pass",
        "try:\n    make(1)['z']\n    assert 0\nexcept KeyError:\n    pass",
    ],
)  # fmt: skip
def test_objects_and_functions_cross(pool: Pool, test: str) -> None:
    outcome = run(pool, test)
    assert outcome.passed, outcome


@pytest.mark.parametrize(
    ("lies", "test", "kind"),
    [
        ("def __eq__(self, o): return True", "assert f() == 4", "forged"),
        ("def __eq__(self, o): return True", "assert [f()] == [4]", "forged"),
        ("def __len__(self): return 4", "assert f() == 4", "assertion"),
        ("__class__ = property(lambda s: int)", "assert isinstance(f(), int)", "exception"),
        ("def __bool__(self): return 4", "assert f()", "exception"),
        ("def __getattr__(self, n): return self", "assert f().x == 4", "assertion"),
        ("def __str__(self): raise SystemExit(0)", "assert f() == 4, f()", "assertion"),
        ("def __iter__(self): raise MemoryError", "assert list(f()) == [4]", "memory"),
        ("def __iter__(self): return iter([S()])", "assert list(f()) == [4]", "assertion"),
    ],
)
def test_objects_are_not_believed(pool: Pool, lies: str, test: str, kind: str) -> None:
    program = f"class S:\n    {lies}\ndef f():\n    return S()\n"
    assert pool.run([ProgramTest(program, test=test, entry=("f",))])[0].kind == kind


def frame(message: str) -> str:
    return (
        f"import os, struct, json\n    b = json.dumps({message}).encode()\n"
        "    os.write(3, struct.pack('<I', len(b)) + b)\n"
    )


@pytest.mark.parametrize(
    "message",
    [
        "{'callback': 5, 'args': {'t': []}, 'kwargs': {'d': []}}",
        "{'callback': -1, 'args': {'t': []}, 'kwargs': {'d': []}}",
        "{'callback': True, 'args': {'t': []}, 'kwargs': {'d': []}}",
        "{'callback': 0, 'args': 7, 'kwargs': {'d': []}}",
        "{'callback': 0}",
        "{'result': {'h': 3}}",
        "{'result': {'o': 'x', 'h': 'y'}}",
        "{'result': {'k': 9}}",
        "{'result': {'n': ['os', 'system']}}",
        "{'nothing': 1}",
        "[1]",
    ],
)
def test_messages_no_honest_program_sends_are_forgeries(pool: Pool, message: str) -> None:
    program = f"def f(g):\n    {frame(message)}    return 1\n"
    test = "assert f(lambda: 1) == 1"
    assert pool.run([ProgramTest(program, test=test, entry=("f",))])[0].kind == "forged"
    assert run(pool, "assert make(1).data == 1").passed


def test_a_program_cannot_choose_the_weaker_mode(pool: Pool, tmp_path: object) -> None:
    """What it returns crosses back as an object, however it is nested."""
    program = "def code(x):\n    return [object(), len]\ndef decode(x):\n    return 3\n"
    test = "assert decode(code(3)) == 3 and decode({'a': code(3)}) == 3"
    entry = ("code", "decode")
    assert pool.run([ProgramTest(program, test=test, entry=entry)])[0].passed


# Looks at every page near its objects, one letter on, so that it never holds what it looks for.
MEMORY = """
def f(next_letters):
    import ctypes, gc
    libc = ctypes.CDLL(None)
    byte, size = ctypes.byref(ctypes.c_char()), ctypes.c_size_t(4096)
    shift = bytes((letter + 1) % 256 for letter in range(256))
    wanted = next_letters.encode()
    near = {id(item) >> 22 << 22 for item in gc.get_objects()}
    for start in sorted({at + step for at in near for step in (-1 << 22, 0, 1 << 22)}):
        for page in range(start, start + (1 << 22), 4096):
            if libc.mincore(ctypes.c_void_p(page), size, byte) == 0:
                if wanted in ctypes.string_at(page, 4096).translate(shift):
                    return "found"
    return "nothing"
"""
SECRET = "the solution of another sample "
NEXT_LETTERS = "".join(chr(ord(letter) + 1) for letter in SECRET)


@pytest.mark.parametrize("hidden", ["program", "test"])
def test_no_program_finds_another_or_a_test_in_the_memory_it_inherits(
    pool: Pool, hidden: str
) -> None:
    comment = f"# {SECRET * 99}\n"
    program = "def f():\n    return 1\n" + (comment if hidden == "program" else "")
    test = "assert f() == 1\n" + (comment if hidden == "test" else "")
    look = f"assert f({NEXT_LETTERS!r}) == 'nothing'"
    with Pool(workers=1, tier=pool.sandbox.tier, unsafe=True) as own:
        for mode in ("pipe", "in_process"):
            first = [ProgramTest(program, mode, test, entry=("f",))] * 3
            assert all(outcome.passed for outcome in own.run(first))
        outcome = own.run([ProgramTest(MEMORY, test=look, entry=("f",))])[0]
        assert outcome.passed, outcome
        # The search itself works: it finds what the program holds.
        holds = MEMORY + f"held = {SECRET!r} * 99\n"
        assert own.run([ProgramTest(holds, test=look, entry=("f",))])[0].kind == "assertion"
