"""The persistent input batch, its forward metadata and the paged KV tensors."""
