"""Multi-token prediction in plain PyTorch: DeepSeek V3's report (arXiv 2412.19437), section 2.2, with one depth.

transformers has no module of it. The block is a layer of the model's own class. It reads what the model returns, behind
the final norm, as in vLLM and SGLang, which run the released files."""

import torch

from records import ids, target_weights, targets


class Mtp(torch.nn.Module):
    """Under Qwen's names, those of files with a module `mtp`; `files` has DeepSeek's and GLM's."""

    def __init__(self, model):
        super().__init__()
        config, last = model.config, model.model.layers[-1]
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (
            type(model.model.norm)(config.hidden_size, eps=config.rms_norm_eps) for _ in range(3))
        self.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        attention = [i for i, layer in enumerate(model.model.layers) if hasattr(layer, "self_attn")]
        self.layers = torch.nn.ModuleList([type(last)(config, attention[-1])])

    def forward(self, model, hidden, tokens):
        """Of the positions before the last one, with what the model returns there and the tokens behind them."""
        both = [self.pre_fc_norm_embedding(model.get_input_embeddings()(tokens[:, 1:])),
                self.pre_fc_norm_hidden(hidden[:, :-1])]
        x = self.fc(torch.cat(both, -1))
        at = torch.arange(x.shape[1])[None]
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)[None, None]
        x = self.layers[0](x, position_embeddings=model.model.rotary_emb(x, at), attention_mask=mask, position_ids=at)
        return model.get_output_embeddings()(self.norm(x[0] if isinstance(x, tuple) else x))


def weight(config):
    return getattr(config, "mtp_loss_coef", 0)


def loss_sums(model, row):
    """Of a row of documents: cross-entropy of the model and of its multi-token prediction, times the targets' weights,
    and how many targets the model has."""
    sums, count = [0, 0], 0
    for piece in row:
        tokens = torch.tensor([ids(piece)])
        want = torch.tensor([-100 if t is None else t for t in targets(piece)])
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = [model.get_output_embeddings()(hidden)]
        if len(piece) > 2:
            logits.append(model.mtp(model, hidden, tokens))
        for i, x in enumerate(logits):
            # position p, which has seen token p + 1, too, predicts the next one's target
            each = torch.nn.functional.cross_entropy(x[0], want[i:], ignore_index=-100, reduction="none")
            sums[i] = sums[i] + (each * torch.tensor(target_weights(piece)[i:], dtype=each.dtype)).sum()
        count += int((want != -100).sum())
    return (*sums, count)


def files(config, name):
    """A tensor's name in files that have multi-token prediction as the layer after the last one."""
    if config.model_type.startswith("qwen") or not name.startswith("mtp."):
        return name
    name = name.removeprefix("mtp.").removeprefix("layers.0.")
    for ours, theirs in (("pre_fc_norm_embedding", "enorm"), ("pre_fc_norm_hidden", "hnorm"), ("fc", "eh_proj"),
                         ("norm", "shared_head.norm")):
        name = theirs + name.removeprefix(ours) if name == ours + ".weight" else name
    return "model.layers.%d.%s" % (config.num_hidden_layers, name)
