"""torch_beside.py RESULT.json: what torch takes on this card for products and attention of the sizes that
`quire bench kernels` measures, so that both stand beside each other. Ends with 77 where there is no torch or no card.
"""

import json
import pathlib
import sys

try:
    import torch
except ImportError:
    print("this machine has no torch")
    sys.exit(77)
if not torch.cuda.is_available():
    print("no card can be used by torch")
    sys.exit(77)

ROWS = (1, 2, 4, 8, 16, 32, 64, 256)
SHAPES = ((4096, 4096), (14336, 4096))  # outputs, inputs
CALLS = 20


def seconds_of(call):
    """Of a call, by events around some that follow each other; the best of five."""
    call()
    best = float("inf")
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) * 1e-3 / CALLS)
    return best


def products(found):
    for outputs, inputs in SHAPES:
        # As many weights as no cache holds together.
        count = max(2, (256 << 20) // (2 * outputs * inputs))
        weights = [torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
        eights = [weight.to(torch.float8_e4m3fn) for weight in weights]
        for rows in ROWS:
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            at = iter(range(1 << 30))
            found[f"linear BF16 [{outputs}, {inputs}] rows {rows}"] = seconds_of(
                lambda: torch.nn.functional.linear(x, weights[next(at) % count]))
            if rows % 16 != 0:
                continue
            x8 = x.to(torch.float8_e4m3fn)
            of_rows = torch.ones(rows, 1, device="cuda")
            of_outputs = torch.ones(1, outputs, device="cuda")
            try:
                found[f"linear F8_E4M3 [{outputs}, {inputs}] rows {rows}"] = seconds_of(
                    lambda: torch._scaled_mm(x8, eights[next(at) % count].t(), scale_a=of_rows, scale_b=of_outputs,
                                             out_dtype=torch.bfloat16))
            except RuntimeError as error:
                print(f"_scaled_mm of {rows} rows: {error}")
                found[f"linear F8_E4M3 [{outputs}, {inputs}] rows {rows}"] = None


def attention(found):
    for sequences, context, queries in ((1, 8192, 1), (32, 1024, 1), (32, 8192, 1), (256, 1024, 1), (1, 2048, 2048),
                                        (1, 8192, 8192)):
        q = torch.randn(sequences, 32, queries, 128, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(sequences, 8, context, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        kind = "decode" if queries == 1 else "prefill"
        found[f"attention {kind} BF16 {sequences} x {context} tokens, 32/8 heads of 128"] = seconds_of(
            lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=queries > 1, enable_gqa=True))


def main():
    found = {}
    for measure in (products, attention):
        measure(found)
        report = {"version": torch.__version__, "card": torch.cuda.get_device_name(), "seconds": found}
        pathlib.Path(sys.argv[1]).write_text(json.dumps(report, indent=2))
    for name, seconds in found.items():
        print(f"{name:<60} {'refused' if seconds is None else f'{seconds * 1e6:10.2f} us'}")


if __name__ == "__main__":
    main()
