"""tests/golden/gguf/spm.gguf, spm.json: a small SentencePiece vocabulary (BPE with byte fallback, as Llama's) in the keys of a GGUF
file, and the ids that sentencepiece gives for hard texts.

Names of control tokens are not among the texts: transformers reads them as these tokens, sentencepiece as text.

    pip install gguf sentencepiece; python3 gguf_spm.py TEXT OUT_FOLDER      TEXT: what it is trained on, the MODEL.md that was
"""
import io
import json
import os
import sys

import sentencepiece
from gguf import GGUFWriter

TEXTS = ["", " ", "  two  spaces ", "plain text", "The key of the red box is 4071.", "naïve café — “quoted”", "中文 and 日本語",
         "👩‍👩‍👧 🏳️‍🌈", "tabs\tand\nnew\r\nlines\n", "a" * 70, "▁already", "<0x41> ½ ﬁ", "zero\u200bwidth\u00a0nbsp",
         "x" + "é" * 9 + " \u0301", "0123456789 3.14 1e-5"]


def main():
    model = io.BytesIO()
    with open(sys.argv[1], encoding="utf-8") as f:
        lines = [line.strip() for line in f if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines + ["café naïve “a” — the and of to"]), model_writer=model, model_type="bpe",
        vocab_size=900, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=True, character_coverage=0.9995, minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    n = sp.get_piece_size()
    kinds = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1 for i in range(n)]
    out = GGUFWriter(os.path.join(sys.argv[2], "spm.gguf"), "llama")
    out.add_tokenizer_model("llama")
    out.add_tokenizer_pre("default")
    out.add_token_list([sp.id_to_piece(i) for i in range(n)])
    out.add_token_scores([sp.get_score(i) for i in range(n)])
    out.add_token_types(kinds)
    out.add_bos_token_id(sp.bos_id())
    out.add_eos_token_id(sp.eos_id())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.close()
    rows = [{"text": t, "ids": sp.encode(t)} for t in TEXTS + lines[:40]]
    with open(os.path.join(sys.argv[2], "spm.json"), "w", encoding="utf-8") as f:
        json.dump({"bos": sp.bos_id(), "rows": rows}, f, ensure_ascii=True)


main()
