"""How a quantized checkpoint says what it holds: quantization_config of config.json, by method."""
