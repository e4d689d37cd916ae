"""Names of a setting in other systems, so that an error about a key copied from one of them suggests the right key.

Names from Hugging Face's `config.json` and `TrainingArguments`, torchtitan, MaxText, Megatron-LM and nanochat; several
share some of them. They are compared in lower case, with `-` and `.` as `_`.
"""

from __future__ import annotations

import re

ALIASES: dict[str, str] = {
    # The model.
    "model.layers": "num_hidden_layers n_layers n_layer num_layers num_decoder_layers base_num_decoder_layers depth",
    "model.embed": "hidden_size dim d_model n_embd emb_dim base_emb_dim model_dim hidden_dim_model",
    "model.heads": "num_attention_heads n_heads n_head num_heads num_query_heads base_num_query_heads",
    "model.kv_heads": "num_key_value_heads n_kv_heads n_kv_head num_query_groups base_num_kv_heads num_kv_heads",
    "model.mlp": "intermediate_size ffn_hidden_size ffn_dim hidden_dim mlp_dim base_mlp_dim n_inner d_ff",
    "model.vocab": "vocab_size padded_vocab_size n_vocab",
    "model.vocab_multiple": "make_vocab_size_divisible_by pad_vocab_size_multiple",
    "model.head_dim": "kv_channels d_head head_size",
    "model.tied": "tie_word_embeddings tie_embeddings tie_weights logits_via_embedding enable_weight_tying",
    "model.rope.base":
        "rope_base rope_theta rotary_base rope_max_timescale rope_local_base_freq local_rope_max_timescale",
    "model.rope.partial": "partial_rotary_factor rotary_percent rotary_pct rotary_emb_fraction",
    "model.rope.scaling": "rope_scaling rope_type rope_scaling_type",
    "model.rope.factor": "rope_factor rope_scaling_factor scaling_factor",
    "model.rope.original_length": "rope_original_length original_max_position_embeddings",
    "model.rope.short_factors": "short_factor",
    "model.rope.long_factors": "long_factor",
    "model.rope.low_frequency": "rope_low_frequency low_freq_factor",
    "model.rope.high_frequency": "rope_high_frequency high_freq_factor",
    "model.rope.beta_fast": "rope_beta_fast beta_fast",
    "model.rope.beta_slow": "rope_beta_slow beta_slow",
    "model.rope.truncate": "rope_truncate",
    "model.rope.attention_factor": "rope_attention_factor",
    "model.rope.mscale": "rope_mscale mscale",
    "model.rope.mscale_all_dim": "rope_mscale_all_dim mscale_all_dim",
    "model.norm_epsilon":
        "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps layernorm_epsilon "
        "normalization_layer_epsilon",
    "model.norm": "normalization norm_type",
    "model.position": "position_embedding_type",
    "model.max_positions": "max_position_embeddings n_positions block_size",
    "model.norm_placement":
        "norm_position norm_order post_norm use_post_norm sandwich_norm use_post_attn_norm use_post_ffw_norm "
        "post_attention_norm use_parallel_residual parallel_residual parallel_attn use_parallel_block",
    "model.qkv_clip": "clip_qkv",
    "model.residual.mixer_stream": "full_attn_alpha_factor layernorm_full_attention_alpha",
    "model.residual.mixer_output": "residual_multiplier residual_scale",
    "model.residual.mlp_stream": "mlp_alpha_factor layernorm_mlp_alpha",
    "model.activation": "hidden_act hidden_activation activation_function mlp_activations",
    "model.attention_bias": "qkv_bias use_qkv_bias add_qkv_bias use_bias_in_qkv",
    "model.attention_sinks": "sinks s_aux use_attention_sinks use_sink_attention",
    "model.attention_gate": "attn_output_gate output_gate use_output_gate gated_attention",
    "model.attention_scale": "query_pre_attn_scalar attention_multiplier softmax_scale attn_scale",
    "model.embedding_scale": "scale_embeddings embedding_multiplier embed_scale scale_emb normalize_embedding",
    "model.pattern": "layer_types layer_pattern sliding_window_pattern attention_pattern global_attn_every_n_layers",
    "model.experts":
        "num_experts n_routed_experts num_local_experts num_moe_experts num_experts_per_tok moe_intermediate_size "
        "n_shared_experts moe_router_topk",
    "model.latent_attention":
        "kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim multi_latent_attention attention_type",
    "model.chunk": "attention_chunk_size",
    "model.attention_temperature": "attn_temperature_tuning floor_scale llama_4_scaling_beta",
    "model.window": "sliding_window sliding_window_size window_size",
    "model.dropout": "resid_pdrop embd_pdrop hidden_dropout hidden_dropout_prob dropout_rate attention_dropout",
    "model.init_scale": "initializer_range init_method_std init_std",
    "model.qk_norm": "use_qk_norm qk_layernorm use_qk_layernorm",
    "model.z_loss": "z_loss_multiplier z_loss_weight",
    "model.logit_divisor": "logits_scaling logit_scale",
    "model.logit_softcap": "final_logit_softcapping final_logits_soft_cap",
    "model.attention_softcap": "attn_logit_softcapping attn_logits_soft_cap",
    "model.preset": "model_name flavor model_type",
    # The layout.
    "parallel.tensor":
        "tp tp_size tensor_parallel tensor_parallel_degree tensor_parallel_size tensor_model_parallel_size "
        "ici_tensor_parallelism tensor_parallelism",
    "parallel.pipe":
        "pp pp_size pipeline_parallel pipeline_parallel_degree pipeline_parallel_size "
        "pipeline_model_parallel_size ici_pipeline_parallelism pipeline",
    "parallel.context":
        "cp cp_size context_parallel context_parallel_degree context_parallel_size sequence_parallel_size "
        "ici_context_parallelism",
    "parallel.expert": "ep ep_size expert_parallel_degree expert_model_parallel_size ici_expert_parallelism",
    "parallel.experts.exchange": "expert_exchange",
    "parallel.experts.backend": "expert_backend",
    "parallel.experts.capacity": "expert_capacity",
    "parallel.experts.slices": "expert_slices",
    "parallel.experts.own_rows": "expert_own_rows",
    "parallel.experts.imbalance": "expert_imbalance",
    "parallel.fsdp": "dp_shard data_parallel_shard_degree ici_fsdp_parallelism fsdp_size sharding_degree",
    "parallel.replica":
        "dp dp_replicate dp_size data_parallel data_parallel_degree data_parallel_replicate_degree "
        "data_parallel_size ici_data_parallelism dcn_data_parallelism num_replicas",
    "parallel.zero": "zero_stage reshard_after_forward fsdp_reshard_after_forward zero_optimization_stage",
    "parallel.microbatches":
        "gradient_accumulation_steps grad_accum_steps grad_accum num_microbatches accum_steps "
        "pipeline_parallel_microbatches num_pipeline_microbatches",
    "parallel.overlap.embedding_messages": "embedding_messages",
    "parallel.overlap.shard_state_over_replicas": "shard_state_over_replicas",
    "parallel.overlap.state_messages": "state_messages",
    "parallel.overlap.layer_unroll": "layer_unroll",
    "parallel.overlap.weight_prefetch": "weight_prefetch",
    "parallel.overlap.collectives_at_once": "collectives_at_once",
    "parallel.overlap.tensor": "tensor_overlap",
    "parallel.overlap.tensor_chunks": "tensor_chunks",
    "parallel.hpz": "zero_hpz_partition_size",
    "parallel.quantized.weights": "weight_wire zero_quantized_weights",
    "parallel.quantized.gradients": "gradient_wire zero_quantized_gradients",
    "parallel.quantized.tokens": "exchange_wire",
    "parallel.schedule": "pipeline_parallel_schedule pipeline_schedule",
    "parallel.virtual_stages":
        "num_virtual_stages_per_pipeline_rank virtual_pipeline_model_parallel_size "
        "num_layers_per_virtual_pipeline_stage num_pipeline_repeats",
    # Precision and memory.
    "precision.compute":
        "dtype torch_dtype bf16 fp16 mixed_precision mixed_precision_param param_dtype activation_dtype",
    "precision.gradient": "mixed_precision_reduce grad_dtype",
    "memory.remat":
        "activation_checkpoint activation_checkpointing activation_checkpoint_mode gradient_checkpointing "
        "remat_policy recompute_granularity recompute recompute_method ac",
    "memory.optimizer_offload": "cpu_offload optimizer_cpu_offload optimizer_memory_host_offload offload_optimizer",
    "attention.backend":
        "attn_implementation attn_type attention_backend attention_impl use_flash_attn flash_attention",
    # The optimizer.
    "optimizer.learning_rate": "lr max_lr peak_lr base_lr",
    "optimizer.matrix_learning_rate": "muon_learning_rate muon_lr",
    "optimizer.name": "optimizer optim opt_type optimizer_name",
    "optimizer.options.beta1": "adam_b1 adam_beta1 b1",
    "optimizer.options.beta2": "adam_b2 adam_beta2 b2",
    "optimizer.options.epsilon": "eps adam_eps adam_epsilon",
    "optimizer.weight_decay": "wd adam_weight_decay decay",
    "optimizer.clip_norm":
        "max_norm grad_clip clip_grad max_grad_norm gradient_clipping_threshold gradient_clip_val "
        "gradient_clip clip_grad_norm",
    "optimizer.schedule": "lr_scheduler lr_scheduler_type lr_decay_style lr_schedule",
    "optimizer.warmup_steps":
        "warmup lr_warmup_iters warmup_iters lr_warmup_steps num_warmup_steps warmup_steps_fraction "
        "warmup_ratio",
    "optimizer.decay_steps": "lr_decay_iters lr_decay_steps",
    "optimizer.decay_fraction": "decay_ratio warmdown_ratio lr_decay_fraction",
    "optimizer.final_fraction": "min_lr min_lr_factor min_lr_ratio final_lr_frac cosine_learning_rate_final_fraction",
    "optimizer.ema": "ema_decay ema_beta",
    # Data and the run.
    "data.batch_size":
        "global_batch_size batch train_batch_size total_batch_size per_device_train_batch_size "
        "per_device_batch_size local_batch_size device_batch_size micro_batch_size",
    "data.sequence_length":
        "seq_len seq_length max_seq_len max_target_length max_seq_length context_length max_length "
        "sequence_len",
    "data.path": "dataset dataset_path data_path dataset_name dataset_dir train_data",
    "data.packed": "packing pack_sequences",
    "run.steps": "max_steps train_iters num_iterations training_steps total_steps max_iters num_train_steps n_steps",
    "run.seed": "random_seed rng_seed init_weights_seed",
    "run.init_from":
        "pretrained_model_name_or_path init_from_checkpoint initial_load_path load_parameters_path "
        "pretrained_checkpoint",
    "run.name": "run_name experiment_name exp_name",
    "run.dir": "output_dir out_dir dump_folder base_output_directory save_dir",
    "run.log_every": "log_interval log_freq logging_steps log_period log_every_n_steps",
    "run.wandb": "use_wandb wandb_project enable_wandb report_to",
    "run.profile": "enable_profiling profiler",
    "checkpoint.every":
        "save_every save_interval save_steps checkpoint_period checkpoint_interval ckpt_every save_freq "
        "checkpoint_every",
    "checkpoint.keep_last": "keep_latest_k save_total_limit max_to_keep max_num_checkpoints_to_keep",
    "evaluation.every": "eval_interval eval_steps eval_every eval_freq validation_freq",
    "evaluation.batches": "eval_iters eval_batches eval_iterations",
    "watch.limits.slow_step": "slow_step",
    "watch.limits.slow_pace": "slow_pace",
    "watch.limits.data_wait": "data_wait",
    "watch.limits.straggler": "straggler",
    "precision.matmul_options.exclude": "matmul_except filter_fqns",
    "precision.matmul_options.first_layers": "num_layers_at_start_in_bf16",
    "precision.matmul_options.last_layers": "num_layers_at_end_in_bf16",
    "precision.matmul_options.history": "matmul_history amax_history_len",
    "precision.matmul_options.backend": "matmul_backend",
    "distributed.coordinator": "master_addr master_address jax_coordinator_ip coordinator_address rdzv_endpoint",
    "distributed.processes": "world_size nnodes num_processes num_nodes",
    "distributed.process_id": "rank node_rank process_index",
}  # fmt: skip
"""Our key to the names that other systems have for it."""

MOVED: dict[str, str] = {
    **{
        f"experts.{name}": f"model.experts.router_options.{name}"
        for name in (
            "groups", "groups_per_token", "projection", "temperature", "last_temperature", "anneal_steps", "threshold",
            "force", "scale", "bias_rate",
        )
    },
    "experts.compression": "model.experts.clusters.share",
    "experts.hashes": "model.experts.clusters.hashes",
    "experts.residual": "model.experts.clusters.residual",
    **{f"data.heldout{end}": f"data.validation{end}" for end in ("", "_path", "_fraction")},
    "parallel.secondary_shard": "parallel.hpz",
    "overlap.expert_slices": "parallel.experts.slices",
    "overlap.expert_own_rows": "parallel.experts.own_rows",
    "matmul_except.parts": "precision.matmul_options.exclude",
    "matmul_except.first_layers": "precision.matmul_options.first_layers",
    "matmul_except.last_layers": "precision.matmul_options.last_layers",
    "run.max_skipped_steps": "watch.limits.skipped_steps",
    "watch.spike": "watch.limits.spike",
    "watch.spike_window": "watch.limits.spike_window",
    "optimizer.lion_beta1": "optimizer.options.beta1",
    "optimizer.lion_beta2": "optimizer.options.beta2",
    "optimizer.muon_momentum": "optimizer.options.momentum",
    "optimizer.muon_iterations": "optimizer.options.iterations",
    "optimizer.matrix_dtype": "optimizer.options.matrix_dtype",
    "optimizer.muon_dtype": "optimizer.options.matrix_dtype",
    "optimizer.adafactor_relative": "optimizer.options.relative",
    **{f"optimizer.{name}": f"optimizer.options.{name}" for name in ("beta1", "beta2", "epsilon")},
}  # fmt: skip
"""Old keys, by `section.key` or `mapping.key`, to their keys now."""

REMOVED: dict[str, str] = {
    "parallel.overlap.replica_sums": "gradients are summed over replicas after the backward",
    "parallel.replica_sums": "gradients are summed over replicas after the backward",
    "attention.norm_rotary": "norms and rotary embeddings are computed by XLA",
    "parallel.collectives": "collectives are those of NCCL, as XLA asks for them",
    "parallel.joined_messages": "messages of a layer are joined up to the size of a matrix",
    "precision.gradient_error_feedback": "quantized gradients have no error feedback",
    "precision.loss_scale": "float16 has a dynamic loss scale that begins at 65536",
    "precision.loss_scale_interval": "the loss scale doubles after 1000 good steps",
    "precision.master": "master weights are float32",
    "run.record_routing": "a field of the batch replays routing (`data.routing`)",
    "memory.loss_backend": "XLA computes head and loss in tiles",
    "memory.loss_logits": "XLA computes head and loss in tiles, which need their logits once",
    "memory.optimizer_resident": "the plan leaves on the device the state that fits",
    "memory.weights_resident": "the plan leaves on the device the state that fits",
    "evaluation.sample_temperature": "the sample of a run has temperature 0.7; jaxpar.generate takes others",
}
"""Old keys without a successor, each with what is done instead."""

_BY_ALIAS = {alias: key for key, aliases in ALIASES.items() for alias in aliases.split()}


def key_of_other_system(name: str) -> str | None:
    """The `section.key` that another system calls `name`, whatever its section there; None if there is none."""
    return _BY_ALIAS.get(re.sub(r"[-.\s]", "_", name.strip().lower()))
