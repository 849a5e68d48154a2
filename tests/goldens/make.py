"""Makes the goldens: what mlx-lm computes, for our tests to be compared with. README.md says how.

    python make.py tiny [CASE...]      logits and greedy tokens of tiny models, all or those named
    python make.py gguf                what GGUF files of some of them hold
    python make.py sampling            what each sampling stage leaves of a distribution
    python make.py smollm2 GGUF FOLDER export the default model to FOLDER and answer questions with it
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    match sys.argv[1:]:
        case ["tiny", *names]:
            import tiny

            tiny.make(HERE, names)
        case ["gguf"]:
            import gguf_models

            gguf_models.make(HERE)
        case ["sampling"]:
            import sampling

            sampling.make(HERE / "sampling.json")
        case ["smollm2", gguf, folder]:
            import smollm2

            smollm2.export(Path(gguf), Path(folder))
            smollm2.greedy(Path(folder), HERE / "smollm2" / "greedy.json")
        case _:
            raise SystemExit(__doc__)


main()
