"""A DiffLlama and a fast tokenizer exactly as save_pretrained of transformers leaves them: nothing is edited.

    python tests/golden/saved.py

writes tests/golden/saved (torch, transformers 5.23). The tokenizer was given no length, so that its
configuration says "model_max_length": 1000000000000000019884624838656, which no 64-bit integer holds.
"""

import pathlib

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
OUT = HERE / "saved"

torch.manual_seed(1)
source = HERE.parent.parent / "calib" / "pair" / "diffllama" / "tokenizer.json"
tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(source), bos_token="<bos>")
model = DiffLlamaForCausalLM(DiffLlamaConfig(
    vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True)).to(torch.bfloat16)
model.save_pretrained(OUT)
tokenizer.save_pretrained(OUT)
