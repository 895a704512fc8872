"""A chat model of about 100k parameters that vLLM and transformers both load, made in place without a network."""

import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, EOS, START, UNKNOWN = "<pad>", "<eos>", "<start>", "<unk>"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<start>' + m['role'] + ':' + m['content'] + '<eos>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start>assistant:' }}{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per printable character: pad 0, eos 1, start 2, unknown 3."""
    letters = string.digits + string.ascii_letters + string.punctuation + " \n"
    vocab = {token: i for i, token in enumerate([PAD, EOS, START, UNKNOWN, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
        padding_side="left",
    )


def make_tiny_model(
    folder: Path, *, seed: int = 0, num_layers: int = 2, num_heads: int = 2, tie_embeddings: bool = True
) -> Path:
    """Save a random float32 Llama (hidden 64, heads of 32, 100 ids, 512 positions) and its tokenizer in `folder`.

    The scale of the weights is large enough that log-probabilities differ clearly between tokens and after an update.
    """
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=tie_embeddings,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
