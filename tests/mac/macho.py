"""Checks the load commands of a Mach-O program for Apple silicon: what it needs to start on a user's Mac.

Layouts are those of Apple's <mach-o/loader.h>.
"""

import argparse
import pathlib
import struct
import sys

MAGIC_64, ARM64, EXECUTE = 0xFEEDFACF, 0x0100000C, 2
LOAD_DYLIB, RPATH, BUILD_VERSION, MAIN, CODE_SIGNATURE = 0xC, 0x8000001C, 0x32, 0x80000028, 0x1D
MACOS = 1
# What every Mac has, wherever the program looks.
OF_THE_SYSTEM = ("/usr/lib/", "/System/Library/")


class Commands:
    """The load commands of one file."""

    def __init__(self, path):
        self.libraries, self.rpaths, self.system, self.kinds = [], [], None, set()
        data = pathlib.Path(path).read_bytes()
        if len(data) < 32:
            fail(f"{path} is too short for a Mach-O file")
        magic, cpu, _, kind, count, _, _, _ = struct.unpack_from("<8I", data)
        expect("magic", hex(magic), hex(MAGIC_64))
        expect("processor", hex(cpu), hex(ARM64))
        self.kind = kind
        at = 32
        for _ in range(count):
            if len(data) < at + 8:
                fail(f"{path} ends inside its load commands")
            command, size = struct.unpack_from("<2I", data, at)
            if size < 8:
                fail(f"{path} has a load command of {size} bytes")
            self.add(command, data[at : at + size])
            at += size

    def add(self, command, body):
        self.kinds.add(command)
        if command in (LOAD_DYLIB, RPATH):
            (offset,) = struct.unpack_from("<I", body, 8)
            text = body[offset:].split(b"\0")[0].decode()
            (self.libraries if command == LOAD_DYLIB else self.rpaths).append(text)
        elif command == BUILD_VERSION:
            platform, oldest = struct.unpack_from("<2I", body, 8)
            expect("platform", platform, MACOS)
            self.system = f"{oldest >> 16}.{oldest >> 8 & 0xFF}"


def fail(message):
    sys.exit(f"mac check: {message}")


def expect(what, got, wanted):
    if got != wanted:
        fail(f"{what} is {got}, expected {wanted}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--system", required=True, help="the oldest macOS that must run it, as 14.0")
    args = parser.parse_args()

    program = Commands(args.program)
    expect("kind", program.kind, EXECUTE)
    expect("oldest system", program.system, args.system)
    needed = ((MAIN, "entry point"), (CODE_SIGNATURE, "code signature, and Apple silicon starts nothing unsigned"))
    for command, name in needed:
        if command not in program.kinds:
            fail(f"{args.program} has no {name}")

    ours = [name for name in program.libraries if not name.startswith(OF_THE_SYSTEM)]
    expect("libraries beside the system's", ours, ["@rpath/libmlx.dylib"])
    folders = [folder for folder in map(pathlib.Path, program.rpaths) if (folder / "libmlx.dylib").exists()]
    if not folders:
        fail(f"no run path of {program.rpaths} holds libmlx.dylib")
    if not (folders[0] / "mlx.metallib").exists():
        fail(f"{folders[0]} has no mlx.metallib, which MLX looks for beside its library")
    library = Commands(folders[0] / "libmlx.dylib")
    if tuple(map(int, library.system.split("."))) > tuple(map(int, args.system.split("."))):
        fail(f"libmlx.dylib needs macOS {library.system}, newer than {args.system}")
    print(f"mac check: macOS {program.system}, run path {folders[0]}, libraries {' '.join(program.libraries)}")


if __name__ == "__main__":
    main()
