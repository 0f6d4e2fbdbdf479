"""What every field of a published config.json must say for this network to compute what its authors' does.

Sizes are mapped onto a ModelSpec (`ncp_model.hf_config`); the fields here either have one value that this network has too,
or change nothing that it computes. A field that is in neither place is refused by name: it may be what matters.
"""

from __future__ import annotations

from typing import Any


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DD = "conceptlm_v21_dd_"
_ADD = f"{_DD}two_route_add"
_FLOW = "conceptlm_v21_residual_flow_"

BOTH_ONLY: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "is_encoder_decoder": False,
    "is_decoder": False,
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}
"""Fields of either form with one value, a null, or no entry."""

RELEASE_ONLY: dict[str, Any] = {
    "add_bias_linear": False,
    "add_qkv_bias": False,
    "attention_dropout": 0.0,
    "conceptlm_backbone": "olmo3",
    "conceptlm_chunk_merge_method": "meanpooling",
    "conceptlm_hlm_attention_mode": "backbone_window",
    "conceptlm_shift_feature": True,
    f"{_DD}self_dd_mode": "dd",
    **{
        f"{_DD}{tower}_self_dd{field}": value
        for tower in ("encoder", "concept")
        for field, value in (
            ("", True),
            ("_every_n_layers", 1),
            ("_hidden_size", 0),
            ("_use_layernorm", False),
        )
    },
    _ADD: True,
    f"{_ADD}_concept_source": "final",
    f"{_ADD}_enable_raw_concept_route": False,
    f"{_ADD}_enable_final_concept_route": True,
    f"{_ADD}_every_n_layers": 1,
    f"{_ADD}_decoder_hidden_size": 0,
    f"{_ADD}_concept_hidden_size": 0,
    f"{_ADD}_disable_decoder_dd": False,
    f"{_ADD}_decoder_use_layernorm": False,
    f"{_ADD}_concept_use_layernorm": True,
    f"{_DD}enable_raw_concept_route": False,
    f"{_DD}enable_final_concept_route": True,
    "conceptlm_v21_enable_raw_concept_route": False,
    "conceptlm_v21_enable_final_concept_route": True,
    "conceptlm_v21_enable_concept_read_encoder": True,
    "conceptlm_v21_enable_decoder_read_encoder": True,
    "conceptlm_v21_enable_decoder_read_concept": True,
    "conceptlm_v21_final_read_concept_gate": True,
    f"{_FLOW}route_hidden_size": 0,
    f"{_FLOW}route_use_softmax": True,
    f"{_FLOW}source_use_layernorm": True,
    f"{_FLOW}shared_source_norm": True,
    "hidden_dropout": 0.0,
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "qk_layernorm": True,
    "rotary_interleaved": False,
    "rotary_percent": 1.0,
    "swiglu": True,
    "untie_embeddings_and_output_weights": True,
}

OLMO3_ONLY: dict[str, Any] = {"clip_qkv": None}

RELEASE_MAPPED = _names(
    """hidden_size ffn_hidden_size num_layers num_attention_heads num_query_groups vocab_size max_sequence_length
    layernorm_epsilon qk_norm_mode qk_norm_weight_size rotary_base window_size window_attn_skip_freq weight_key_format
    conceptlm_encoder_layers conceptlm_special_layers conceptlm_decoder_layers conceptlm_chunk_size
    conceptlm_layer_norm_option conceptlm_hlm_ffn_hidden_size conceptlm_v22_vq_num_codebooks
    conceptlm_v22_vq_codebook_size conceptlm_v22_vq_merge_mode conceptlm_v21_dd_two_route_add_decoder_use_softmax
    num_hidden_layers num_key_value_heads intermediate_size rms_norm_eps max_position_embeddings rope_theta head_dim
    kv_channels sliding_window"""
)
OLMO3_MAPPED = _names(
    """hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size
    max_position_embeddings rms_norm_eps rope_theta rope_parameters sliding_window layer_types head_dim"""
)

HARMLESS = _names(
    """model_type architectures auto_map dtype torch_dtype transformers_version _name_or_path name_or_path
    _attn_implementation attn_implementation _commit_hash use_cache initializer_range init_method_std
    bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id unk_token_id decoder_start_token_id tokenizer_class
    output_attentions output_hidden_states return_dict return_dict_in_generate output_scores chunk_size_feed_forward
    id2label label2id num_labels problem_type finetuning_params finetuning_task task_specific_params prefix
    torchscript use_bfloat16 tf_legacy_loss pruned_heads cross_attention_hidden_size add_cross_attention
    tie_encoder_decoder gradient_checkpointing max_length min_length do_sample early_stopping num_beams
    num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id
    forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    license library_name"""
)
"""Names, token ids of text, what is returned, how weights were first drawn, and how text is sampled: no part of the graph."""

WEIGHT_KEY_FORMATS = (
    "huggingface_state_dict",
    "hf_state_dict",
    "native_hf_state_dict",
    "ncp_olmo3_hf_state_dict",
)
