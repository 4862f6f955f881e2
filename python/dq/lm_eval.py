"""dq as a model of lm-evaluation-harness: every task of it on a container.

    dq-lm-eval --model dq --model_args path=small.h5,kv_bits=4:4 --tasks arc_easy,hellaswag
    python -m dq.lm_eval --model dq --model_args path=model.gguf --tasks wikitext

lm_eval finds models in its own package alone, so its command cannot know this one: dq-lm-eval is lm_eval with dq registered, and
takes the same arguments. In a program `import dq.lm_eval` does that. --model_args has path (or pretrained) and the settings of
dq.load. Texts become tokens by the model's own tokenizer, as in `dq eval`. Without --device it is a GPU where there is one, else the CPU.
"""

import sys

from tqdm import tqdm

import lm_eval.utils
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text

import dq

CHUNK = 64  # requests that libdq gets at a time: it groups them into passes itself


@register_model("dq")
class DqLM(TemplateLM):
    unasked = None  # the device that lm_eval's command names where nobody has

    def __init__(self, path=None, pretrained=None, batch_size=None, max_batch_size=None, device=None, max_gen_toks=256,
                 **settings):
        """pretrained: another name of path, as --model hf has it. batch_size, max_batch_size: of no use here, libdq makes passes by
        rows. device: cpu or cuda[:N]; None: as dq chooses."""
        super().__init__()
        if (path is None) == (pretrained is None):
            found = "neither" if path is None else "both"
            raise ValueError(f"expected path or pretrained, found {found}. Give --model_args path=MODEL, a folder, a .gguf file or a "
                             "container")
        path = pretrained if path is None else path
        device = None if device == self.unasked else device
        self.path = str(path)
        self.max_gen_toks = int(max_gen_toks)
        self.m = dq.load(path, device=device, **settings)

    @property
    def eot_token_id(self):
        return self.m.stop_ids[0] if self.m.stop_ids else self.prefix_token_id

    @property
    def prefix_token_id(self):
        if self.m.prefix_id is None and not self.m.stop_ids:
            raise ValueError(f"{self.path}: the model names neither BOS nor EOS, one of which lm_eval needs here")
        return self.m.stop_ids[0] if self.m.prefix_id is None else self.m.prefix_id

    @property
    def max_length(self):
        return self.m.positions or 1 << 30

    @property
    def tokenizer_name(self):
        return self.path.replace("/", "__")

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        return self.m.encode(string, special=add_special_tokens is None or add_special_tokens)

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        text = self.m.chat_text(chat_history, answer=add_generation_prompt)
        if add_generation_prompt:
            return text
        last = chat_history[-1]["content"]  # is to be continued: what the template has after it goes
        at = text.rfind(last.strip())
        if at < 0:
            raise ValueError("the chat template does not hold the last message as it is, so it cannot be continued")
        whole = last.lstrip()
        return text[:at + len(whole if text.startswith(whole, at) else last.strip())]

    def chat_template(self, chat_template=False):
        if isinstance(chat_template, str):
            raise ValueError(f"{chat_template}: dq applies the model's own chat template. Leave out the name.")
        return "the model's own" if chat_template else None

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, **kwargs):
        """Longest first, as time estimates then shrink; those of one context stay together, so that it is computed once."""
        most = self.max_length + 1
        pairs = []
        for _, context, continuation in requests:
            if not continuation or len(continuation) > self.max_length:
                raise ValueError(f"a continuation of {len(continuation)} tokens (expected 1 to {self.max_length})")
            pairs.append((tuple(context[-(most - len(continuation)):]), tuple(continuation)))
        order = sorted(range(len(pairs)), key=lambda i: (-len(pairs[i][0]), pairs[i][0]))
        out = [None] * len(pairs)
        bar = tqdm(total=len(pairs), disable=disable_tqdm, desc="Running loglikelihood requests")
        for at in range(0, len(order), CHUNK):
            part = order[at:at + CHUNK]
            for i, answer in zip(part, self.m.score([pairs[i] for i in part])):
                out[i] = answer
                if requests[i][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[i][0], answer)
            bar.update(len(part))
        bar.close()
        return out

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        out = []
        prefix = self.prefix_token_id
        for (text,) in tqdm([r.args for r in requests], disable=disable_tqdm, desc="Running rolling requests"):
            tokens = self.tok_encode(text)
            if self.m.encode(text, special=False)[:1] == [prefix] == tokens[:1]:
                tokens = tokens[1:]  # a text that spells BOS itself gets no second one
            windows = map(lm_eval.utils.make_disjoint_window, lm_eval.utils.get_rolling_token_windows(
                token_list=tokens, prefix_token=prefix, max_seq_len=self.max_length, context_len=1))
            scores = self._loglikelihood_tokens([(None, *w) for w in windows], disable_tqdm=True)
            out.append(sum(logp for logp, _ in scores))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), out[-1])
        return out

    def generate_until(self, requests, disable_tqdm=False):
        return [self._until(*r.args) for r in tqdm(requests, disable=disable_tqdm, desc="Running generate_until requests")]

    def _until(self, context, gen_kwargs):
        how = normalize_gen_kwargs(dict(gen_kwargs), self.max_gen_toks)
        eos = self.m.decode([self.eot_token_id], special=True)
        until = handle_stop_sequences(how.pop("until", None), eos=eos)
        most, sample = how.pop("max_gen_toks"), how.pop("do_sample", False)
        temperature = how.pop("temperature", 1.0) if sample else how.pop("temperature", 0.0) and 0.0
        sample = sample and temperature > 0
        sampling = {k: how.pop(k) for k in ("top_k", "top_p", "min_p", "seed") if k in how}
        if how:
            raise ValueError(f"generation settings that dq does not have: {', '.join(how)}")
        room = self.max_length - most
        if room < 1:
            raise ValueError(f"{most} tokens to generate, but the model has {self.max_length} positions")
        said = []

        def stop(_, __, piece):
            said.append(piece)
            return any(term and term in "".join(said) for term in until)

        text = self.m.generate(self.tok_encode(context)[-room:], most, temperature,
                               on_token=stop, **(sampling if sample else {}))
        text = postprocess_generated_text(text, until, None)
        self.cache_hook.add_partial("generate_until", (context, gen_kwargs), text)
        return text


def main():
    from lm_eval.__main__ import cli_evaluate
    sys.argv[0] = "dq-lm-eval"
    if not any(word.startswith("--dev") for word in sys.argv):
        DqLM.unasked = "cuda:0"
    cli_evaluate()


if __name__ == "__main__":
    main()
