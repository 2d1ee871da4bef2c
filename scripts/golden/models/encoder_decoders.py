"""Tiny encoder-decoders: the config.json of each."""

T5 = dict(
    model_type="t5", vocab_size=32, d_model=16, d_kv=6, d_ff=12, num_layers=1, num_decoder_layers=2, num_heads=3,
    relative_attention_num_buckets=8, relative_attention_max_distance=12, layer_norm_epsilon=0.001,
)  # fmt: skip
BART = dict(
    model_type="bart", vocab_size=32, d_model=16, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=12,
    decoder_ffn_dim=10, encoder_attention_heads=2, decoder_attention_heads=4, max_position_embeddings=64,
)  # fmt: skip

ENCODER_DECODERS = {
    "t5": T5,
    "t5_1.1": dict(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "bart": dict(BART, scale_embedding=True, forced_bos_token_id=1),
}
