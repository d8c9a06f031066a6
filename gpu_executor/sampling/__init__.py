"""From logits to tokens: processors, filters, counter-based noise, logprobs."""
