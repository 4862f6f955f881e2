"""tests/golden/gguf/types.gguf: two rows of every block type that dq reads, of random bytes with finite scales, each beside
its values as the package gguf dequantizes them ("TYPE" and "TYPE.values").

    pip install gguf numpy; python3 gguf_types.py OUT.gguf
"""
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, GGUFWriter, dequantize

# where the f16 scales of a block stand
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0]}
ROWS, COLS = 2, 512


def main():
    rng = np.random.default_rng(1)
    out = GGUFWriter(sys.argv[1], "llama")
    for kind, places in SCALES.items():
        values, size = GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (ROWS, COLS // values, size), dtype=np.uint8)
        for at in places:
            scale = np.exp(rng.uniform(-16, 10, blocks.shape[:2])) * rng.choice([-1, 1], blocks.shape[:2])
            blocks[:, :, at:at + 2] = scale.astype("<f2").view(np.uint8).reshape(*blocks.shape[:2], 2)
        packed = blocks.reshape(ROWS, -1)
        out.add_tensor(kind.name, packed, raw_dtype=kind)
        out.add_tensor(kind.name + ".values", dequantize(packed, kind).astype(np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    main()
