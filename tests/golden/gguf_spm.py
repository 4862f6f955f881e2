"""tests/golden/gguf/spm.gguf, spm.json: a small SentencePiece vocabulary (BPE with byte fallback, as Llama's) in the keys of a GGUF
file, and the ids that sentencepiece gives for hard texts; gemma.gguf, gemma.json: one as Gemma's, and the ids of transformers.

Names of control tokens are not among the texts of the first: transformers reads them as these tokens, sentencepiece as text.

    pip install gguf sentencepiece transformers; python3 gguf_spm.py TEXT OUT_FOLDER      TEXT: what it is trained on, the MODEL.md that was
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


GEMMA_TEXTS = ["   three", "a  b   c    d", " " * 31 + "x", " " * 33 + "y", " " * 97, "x\n\n\ny\n", "\n" * 9, "a \n  \n b", "\t\tq",
               "\u2581\u2581 \u2581", "<bos>x<unused0>", "<start_of_turn>user\nHi <end_of_turn>", "<table> <b>",
               "<eos", "\x00\x01\x7f\u0378"]
GEMMA_OWN = ["<start_of_turn>", "<end_of_turn>", "\n", "\n\n", "\n\n\n", *("\u2581" * n for n in range(2, 9)), "\t", "<table>"]


def gemma(lines, folder):
    """Runs of spaces and line feeds are tokens of their own with the worst score; files of llama.cpp write the former as spaces."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=900, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False, character_coverage=0.9995,
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>",
        control_symbols=["<mask>", "<unused0>"], user_defined_symbols=GEMMA_OWN, minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens, kinds, scores = [], [], []
    for i in range(sp.get_piece_size()):
        piece = sp.id_to_piece(i)
        own = piece in GEMMA_OWN
        special = sp.is_control(i) or sp.is_unknown(i) or "turn" in piece
        kinds.append(3 if special else 4 if own else 6 if sp.is_byte(i) else 1)
        tokens.append(piece.replace("\u2581", " ") if own else piece)
        scores.append(-1000.0 if special or own else sp.get_score(i))
    out = GGUFWriter(os.path.join(folder, "gemma.gguf"), "gemma3")
    out.add_tokenizer_model("llama")
    out.add_tokenizer_pre("default")
    out.add_token_list(tokens)
    out.add_token_scores(scores)
    out.add_token_types(kinds)
    out.add_bos_token_id(2)
    out.add_eos_token_id(1)
    out.add_unk_token_id(3)
    out.add_add_bos_token(True)
    out.add_add_space_prefix(False)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.close()
    theirs = convert_gguf_tokenizer("gemma3", {"tokenizer_type": "llama", "tokens": tokens, "scores": scores, "token_type": kinds})[0]
    texts = TEXTS + GEMMA_TEXTS + lines[:20]
    rows = [{"text": t, "ids": theirs.encode(t, add_special_tokens=False).ids} for t in texts]
    with open(os.path.join(folder, "gemma.json"), "w", encoding="utf-8") as f:
        json.dump({"bos": 2, "rows": rows}, f, ensure_ascii=True)


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
    gemma(lines, sys.argv[2])


main()
