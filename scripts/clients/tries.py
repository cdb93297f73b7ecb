"""What the tries of clients share: a list of functions, each of which works or says why not."""

import sys
import traceback

BASE_URL, MODEL = sys.argv[1], sys.argv[2]


def check(held, said):
    if not held:
        raise AssertionError(f"{said!r}"[:1000])


def run(*tries):
    failed = 0
    for one in tries:
        try:
            one()
            print(f"  ok      {one.__name__}", flush=True)
        except Exception as error:
            failed += 1
            print(f"  FAILED  {one.__name__}: {type(error).__name__}: {str(error)[:1500]}", flush=True)
            traceback.print_exc()
    print(f"  {len(tries) - failed} of {len(tries)}", flush=True)
    sys.exit(1 if failed else 0)
