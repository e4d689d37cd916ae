"""Every check between keys: what it refuses, with which keys and values, and what it lets through."""

import pytest

from jaxpar.config import load_config
from jaxpar.config.checks.run import profile_steps
from jaxpar.config.kinds import kind_model
from jaxpar.layers.declared import declare_layer
from jaxpar.layout.checks.validate import validate
from jaxpar.layout.make_plan import resolve_config
from tests.sentences import refusals, refused

MASKED = "loss.name=masked | model.causal=false"
TAUGHT = "loss.name=distill | loss.reference=a"
DPO = "loss.name=dpo | run.init_from=a | data.source=tokens | data.path=a"
LORA = "lora.rank=8 | run.init_from=a"
SIX = "model.layers=6 | parallel.pipe=2"
PATTERN = "model.pattern={prefix: [a], unit: [b]}"
KINDS = "model.kinds={a: {}, b: {keys_of: a}}"
EXPERTS = "model.experts={count: 8, per_token: 2}"
LATENT = "model.kv_heads=null | model.latent_attention={kv_rank: 16}"


@refusals(
    """
    model.kv_heads=3 => model.heads: 8 | model.kv_heads (3) | 6 or 9
    model.embed=100 => model.embed: 100 | model.heads (8) | 96 or 104 | model.head_dim
    data.source=tokens | data.path=a | data.sources={b: 1, c: 2} => data.path: 'a' | data.sources | 2 folders |
        one of the two keys, and null
    lora.rank=8 => lora.rank: 8 | run.init_from is null | lora.rank: null
    LORA | lora.targets=[query, upp] => lora.targets: 'upp' | no matrix | did you mean up?
    LORA | lora.targets=[up, up] => lora.targets: up | twice | each matrix once
    LORA | lora.targets=[] => lora.targets: [] | names of matrices, or null
    LORA | memory.optimizer_offload=host => lora.rank: 8 | memory.optimizer_offload is host | expected none
    LORA | model.low_rank={up: 4} => lora.rank: 8 | model.low_rank | up | one of the two keys
    model.low_rank={upp: 4} => model.low_rank: 'upp' | no matrix | did you mean up?
    model.low_rank={up: 500} => model.low_rank.up: | from 1 to 256 | got 500
    model.low_rank={up: 0} => model.low_rank.up: | from 1 to 256 | got 0
    loss.name=dpp => loss.name: expected cross_entropy | 'dpp' | did you mean dpo?
    loss.name=dpo => loss.name: dpo | loss.reference and run.init_from are null
    loss.name=dpo | run.init_from=a => loss.name: dpo | data.source is stdlib | data.source: tokens
    DPO | loss.beta=0 => loss.beta: must be above 0 | 0.0
    DPO | loss.label_smoothing=0.5 => loss.label_smoothing: | below 0.5 | got 0.5
    DPO | model.rope.scaling=longrope | model.rope.original_length=64 | data.sequence_length=128 |
        model.rope.short_factors=[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1] |
        model.rope.long_factors=[2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2] => data.sequence_length: 128 | longrope | at most | 64
    DPO | data.packed=false => data.packed: false | expected true
    DPO | data.sequence_length=3 => data.sequence_length: 3 | at least 4
    DPO | model.z_loss=1e-4 => model.z_loss: 0.0001 | expected 0 | loss.name: dpo
    loss.name=simpo => loss.name: simpo | data.source is stdlib | pairs of answers | --format preference
    loss.name=kto => loss.name: kto | loss.reference and run.init_from are null
    loss.name=kto | run.init_from=a => loss.name: kto | data.source is stdlib | marked answers | --format labelled
    DPO | loss.gamma=0.2 => loss.gamma: 0.2 | loss.name is dpo | loss.name: simpo
    DPO | loss.desirable_weight=2 => loss.desirable_weight: 2.0 | loss.name is dpo | loss.name: kto
    loss.name=distill => loss.name: distill | loss.reference is null | expected its folder
    TAUGHT | data.source=stream | data.path=a | data.tokenizer=a => loss.name: distill with data.source: stream |
        would tokenize all text | data.source: tokens
    model.causal=false => loss.name: cross_entropy with model.causal: false | with loss.name: masked, or neither
    loss.name=masked => loss.name: masked with model.causal: true | model.causal: false, in which
    MASKED => loss.mask_token: null | mask token
    MASKED | loss.mask_token=3 | loss.spans={a: 1.5} => loss.spans.a: | from 0 to 1, got 1.5
    MASKED | loss.mask_token=3 | loss.rate=1 => loss.rate: | below 1
    MASKED | loss.mask_token=3 | loss.contrastive.temperature=0.2 => loss.contrastive.temperature: 0.2 |
        would not be used | loss.contrastive.weight is 0 | or 0.1
    MASKED | loss.mask_token=3 | loss.contrastive.hop_decay=1 => loss.contrastive.hop_decay: 1.0 | would not be used
    MASKED | loss.mask_token=3 | loss.contrastive.most=3 => loss.contrastive.most: 3 | would not be used | or 32
    MASKED | loss.mask_token=3 | loss.contrastive.relations={a: 2} => loss.contrastive.relations: {a: 2.0} |
        would not be used | or {}
    loss.contrastive.weight=1 => loss.contrastive | cross_entropy
    MASKED | loss.mask_token=3 | loss.contrastive.weight=1 | loss.contrastive.relations={a: -1} => relations.a | from 0
    MASKED | loss.mask_token=3 | model.mixer=gla => model.causal: false | mixer gla sees earlier tokens
    MASKED | loss.mask_token=3 | model.z_loss=1e-4 => model.z_loss: 0.0001 | loss.name: masked
    MASKED | loss.mask_token=3 | evaluation.sample_tokens=3 => model.causal: false | a sample
    TAUGHT | loss.top_k=0 => loss.top_k: | at least 1
    loss.top_k=4 => loss.top_k: 4 | loss.name is cross_entropy | loss.name: distill
    loss.beta=0.2 => loss.beta: 0.2 | loss.name is cross_entropy | loss.name: dpo
    lora.alpha=8 => lora.alpha: 8.0 | lora.rank is null | default, 16.0
    model.head_dim=31 => model.head_dim: | even width | got 31
    model.head_dim=30 | model.rope.partial=0.5 => model.rope.partial: 0.5 of 30 dims | is 15 | even
    model.rope.partial=1.5 => model.rope.partial | above 0 and at most 1 | 1.5
    model.latent_attention={kv_rank: 8} | model.rope.partial=0.5 => model.rope.partial: | model.latent_attention |
        rope_dim | expected 1
    model.rope.scaling=llama3 | model.rope.low_frequency=4 => model.rope.low_frequency: |
        less than model.rope.high_frequency (4.0) | got 4.0
    model.rope.scaling=longrope => model.rope.short_factors: | each pair of dims that rotates, 16, got 0
    model.rope.scaling=yarn | model.rope.beta_slow=33 => model.rope.beta_slow: | at most model.rope.beta_fast (32.0) |
        got 33.0
    model.rope.scaling=yarn | model.rope.base=1 => model.rope.base: | yarn | more than 1 | got 1.0
    model.position=learned | model.max_positions=512 => data.sequence_length: 1024 |
        learned positions, model.max_positions (512)
    parallel.schedule=1f1b => parallel.schedule: 1f1b | parallel.pipe is 1
    parallel.hpz=2 | parallel.zero=2 | parallel.fsdp=4 => parallel.hpz: 2 | parallel.zero is 2 |
        zero: 3 | or null
    parallel.hpz=3 | parallel.fsdp=4 => parallel.fsdp x expert x context: 4 | parallel.hpz (3) |
        3 or 6
    parallel.hpz=4 | parallel.fsdp=4 => parallel.hpz: 4 | no more than 4 ranks | fewer, or null
    parallel.overlap.shard_state_over_replicas=true | parallel.fsdp=4 =>
        parallel.overlap.shard_state_over_replicas: true | would not be used | parallel.replica is 1 | or false
    parallel.overlap.shard_state_over_replicas=true | parallel.replica=4 | parallel.zero=0 =>
        parallel.overlap.shard_state_over_replicas: true | parallel.zero: 0 shards nothing | 1, 2 or 3 | or false
    parallel.overlap.shard_state_over_replicas=true | parallel.replica=4 | memory.optimizer_offload=host |
        memory.weights_offload=host => parallel.overlap.shard_state_over_replicas: true | memory.weights_offload: host |
        expected none | or false
    parallel.quantized.weights=int8 | parallel.zero=0 | parallel.fsdp=4 => parallel.quantized.weights: int8 |
        parallel.zero: 0 | or null
    parallel.virtual_stages=2 => parallel.virtual_stages: 2 | parallel.pipe is 1
    parallel.stage_layers=[2, 4] => parallel.stage_layers: [2, 4] | parallel.pipe is 1
    parallel.pipe_ends=shared => parallel.pipe_ends: shared | parallel.pipe is 1
    parallel.pipe_ticks=branching => parallel.pipe_ticks: branching | parallel.pipe is 1
    parallel.pipe=2 | parallel.pipe_ends=shared | parallel.pipe_ticks=branching => parallel.pipe_ends: shared |
        parallel.pipe_ticks: branching | last, or uniform ticks
    parallel.pipe=2 | parallel.context=2 | model.mixer=gated_deltanet | parallel.pipe_ticks=branching =>
        parallel.pipe_ticks: branching | gated_deltanet | short convolution | parallel.context (2) | uniform
    parallel.context=2 | model.mixer=short_conv | data.sequence_length=4 => parallel.context: 2 | 2 tokens |
        data.sequence_length | 3 at least | short_conv
    SIX | parallel.stage_layers=[2, 3] => parallel.stage_layers: [2, 3] | 5 layers | model.layers is 6
    SIX | parallel.stage_layers=[6, 0] => parallel.stage_layers: | every chunk | got [6, 0]
    SIX | parallel.stage_layers=[] => parallel.stage_layers: | every chunk | got []
    model.layers=6 | parallel.pipe=8 => parallel.pipe x virtual_stages: 8 x 1 chunks | 6 layers | model.layers
    SIX | parallel.virtual_stages=4 | parallel.schedule=interleaved => parallel.pipe x virtual_stages: 2 x 4 chunks |
        6 layers | model.layers
    model.layers=6 | model.vocab=64 | parallel.pipe=3 | parallel.pipe_ends=shared =>
        model.vocab (padded to a multiple of 128): 128 | parallel.pipe x tensor (3) | 126 or 129 | model.vocab_multiple
    model.layers=6 | model.vocab_multiple=2 | parallel.pipe=2 | parallel.tensor=2 | parallel.pipe_ends=shared =>
        model.vocab_multiple: 2 | parallel.pipe x tensor (4) | example 4
    parallel.tensor=3 => model.heads: 8 | parallel.tensor (3) | 6 or 9
    model.heads=12 | model.kv_heads=6 | model.embed=384 | parallel.tensor=4 => model.kv_heads: |
        a multiple or a divisor of parallel.tensor (4) | got 6
    model.mlp=1022 | parallel.tensor=4 => model.mlp: 1022 | parallel.tensor (4) | 1020 or 1024
    model.vocab=61 | model.vocab_multiple=1 | parallel.tensor=2 => model.vocab (padded to a multiple of 1): 61 |
        parallel.tensor (2) | 60 or 62 | model.vocab_multiple
    model.vocab_multiple=1 | parallel.tensor=2 => model.vocab_multiple: 1 | parallel.tensor (2) | example 2
    data.sequence_length=1020 | parallel.context=4 | parallel.tensor=2 => data.sequence_length: 1020 |
        parallel.context x tensor (8) | 1016 or 1024
    parallel.replica=2 | parallel.fsdp=2 | parallel.expert=2 | parallel.microbatches=2 => data.batch_size: 8 |
        parallel.replica x fsdp x expert x microbatches (16) | example 16
    parallel.fsdp=-1 | parallel.tensor=-1 => parallel: | one axis | -1 | fsdp and tensor
    optimizer.decay_steps=50 => optimizer.warmup_steps: 100 | optimizer.decay_steps (50)
    optimizer.schedule=wsd | optimizer.decay_steps=200 | optimizer.decay_fraction=0.6 =>
        optimizer.decay_fraction: 0.6 of 200 steps | optimizer.decay_steps | optimizer.warmup_steps (100)
    optimizer.schedule=wsd | run.steps=120 => optimizer.decay_fraction: 0.2 of 120 steps | run.steps | step 96 |
        optimizer.warmup_steps (100)
    model.kinds={a: {position: learned}, b: {}} | model.pattern={unit: [a, b]} => model.kinds.a.position: learned |
        model.position is rope | same
    model.kinds={all: {}, b: {}} | model.pattern={unit: [all, b]} => model.kinds.all: | a model without kinds |
        expected another
    distributed.processes=2 | distributed.process_id=2 => distributed.process_id: |
        less than distributed.processes (2) | got 2
    distributed.secret_file='' => distributed.secret_file: | path of a file with the job's secret | got an empty text
    distributed.coordinator=localhost => distributed.coordinator: | host:port | got 'localhost'
    model.keys_of=a => model.keys_of: 'a' | all layers | in a kind
    PATTERN | model.kinds={a: {}, b: {keys_of: c}} => model.kinds.b.keys_of: 'c' | not declared | a, b
    PATTERN | model.kinds={a: {}, b: {keys_of: b}} => model.kinds.b.keys_of | no keys and values | a kind that does
    PATTERN | model.kinds={a: {mixer: retention}, b: {keys_of: a}} => model.kinds.b.keys_of | no keys and values
    PATTERN | model.kinds={a: {}, b: {keys_of: a, mixer: retention}} => model.kinds.b.keys_of: a | another mixer | null
    PATTERN | model.kinds={a: {window: 4}, b: {keys_of: a}} => model.kinds.b.window: None | 4 in | the same
    PATTERN | model.kinds={a: {}, b: {keys_of: a, kv_heads: 2}} => model.kinds.b.kv_heads: 2 | 8 in | the same
    PATTERN | model.kinds={a: {}, b: {keys_of: a, head_dim: 4}} => model.kinds.b.head_dim: 4 | the same
    KINDS | model.pattern={unit: [b, a]} => model.kinds.b.keys_of | no layer of kind a is before | expected one
    PATTERN | model.kinds={a: {}, b: {keys_of: a, qk_norm: projection}} => model.kinds.b.qk_norm: projection | keys
    PATTERN | model.kinds={a: {kv_heads: 3}, b: {}} => model.heads: 8 | model.kinds.a.kv_heads (3)
    model.per_layer_embeddings={width: 6} | parallel.tensor=4 => model.per_layer_embeddings.width: 6 | (4) | 4 or 8
    model.per_layer_embeddings={width: 0} => model.per_layer_embeddings.width: | at least 1
    model.latent_attention={query_rank: 8} => model.latent_attention | kv_rank
    model.latent_attention={kv_rank: 8, rope_dims: 8} => model.latent_attention | 'rope_dims' | rope_dim?
    model.kv_lora_rank=512 => model.kv_lora_rank | latent_attention
    model.latent_attention={kv_rank: 0} => model.latent_attention.kv_rank | at least 1 | 0
    model.latent_attention={kv_rank: 8, query_rank: 1000000000000} => model.latent_attention.query_rank | at most
    model.latent_attention={kv_rank: 8, rope_dim: 7} => model.latent_attention.rope_dim | even | 7
    model.kv_heads=2 | model.latent_attention={kv_rank: 8} => model.kv_heads | 2 | model.latent_attention | null
    LATENT | model.head_dim=64 => model.head_dim | 64 | model.latent_attention | null
    LATENT | model.qk_norm=true => model.qk_norm | true | model.latent_attention | false
    LATENT | model.attention_bias=qkv => model.attention_bias | qkv | model.latent_attention | false
    LATENT | model.low_rank={output: 4} => model.low_rank.output | model.latent_attention
    LATENT | lora.rank=4 | run.init_from=a => lora.rank: 4 | model.latent_attention | null
    model.experts={per_token: 2} => model.experts | count
    model.experts={count: 8, pertoken: 2} => model.experts | 'pertoken' | per_token?
    model.experts={count: 8, router: sigmod} => model.experts.router | 'sigmod' | sigmoid?
    model.experts={count: 2, per_token: 3} => model.experts.per_token | at most 2 | 3
    model.experts={count: 2, per_token: 2, router: noisy_top_k} => model.experts.per_token | at most 1 | 2
    model.experts={count: 8, per_token: 2, router: switch} => model.experts.per_token | switch | 1
    model.experts={count: 8, per_token: 1, router: gshard} => model.experts.per_token | gshard | 2
    model.experts={count: 8, per_token: 3, router: k_top_1} => model.experts.count | 8 | per_token (3) | 9
    model.experts={count: 8, router_options: {groups: 3, groups_per_token: 1}} => model.experts.count | groups (3)
    model.experts={count: 8, router_options: {groups: 4}} => model.experts.router_options.groups_per_token | null | both
    model.experts={count: 8, per_token: 3, router_options: {groups: 4, groups_per_token: 1}} =>
        model.experts.per_token | at most 2
    model.experts={count: 8, router: hash, router_options: {groups: 4}} => model.experts.router_options | 'groups'
    model.experts={count: 8, router: expert_choice} => model.experts.router | expert_choice | force: true
    model.experts={count: 8, router_options: {force: true}} => router_options | 'force'
    model.experts={count: 8, router_options: null} => model.experts.router_options | null | {}
    model.experts={count: 8, per_token: 2, router: base} => model.experts.per_token | base | 1
    model.experts={count: 8, router: sam} => router_options | groups | missing
    model.experts={count: 8, router: sam, router_options: {groups: 4, groups_per_token: 2}} =>
        model.experts.router_options | 'groups_per_token'
    model.experts={count: 8, router: dense_to_sparse, router_options: {anneal_step: 5}} =>
        model.experts.router_options | 'anneal_step' | anneal_steps?
    model.experts={count: 8, router: hash, sequence_loss: 0.1} => model.experts.sequence_loss | 0.1 | hash
    model.experts={count: 8, capacity_factor: 0.0} => model.experts.capacity_factor | at least | 0
    model.experts={count: 8, norms: true} => model.experts.norms | true | model.experts.shared is 0
    model.experts={count: 8, shared: 1, norms: true} | model.norm=layernorm => model.experts.norms | true |
        model.norm: layernorm | rmsnorm
    data.routing=a => data.routing | a | model.experts | null
    model.experts={count: 8, router: gshard, router_options: {scale: 2.0}} => router_options | 'scale'
    model.experts={count: 8, clusters: {share: 1.5}} => model.experts.clusters.share | 1.5 | at most 1
    model.experts={count: 8, clusters: {hashes: 3}} => clusters | share | missing
    model.experts={count: 8, clusters: {share: 0.5, hash: 3}} => model.experts.clusters | 'hash' | hashes?
    model.experts={count: 8, groups: 4} => 'groups' | router_options
    model.experts={count: 8, compression: 0.5} => 'compression' | clusters
    model.experts={count: 8, router: dense_to_sparse, clusters: {share: 0.5}} => model.experts.clusters | 0.5 |
        dense_to_sparse | {}
    model.experts={count: 8, balance_loss: -1.0} => model.experts.balance_loss | 0 | -1.0
    EXPERTS | parallel.expert=3 | data.batch_size=24 => model.experts.count | 8 | parallel.expert (3)
    model.experts={count: 8, width: 6} | parallel.tensor=4 => model.experts.width | 6 | parallel.tensor (4)
    EXPERTS | model.low_rank={query: 8} => model.low_rank | query | {}
    EXPERTS | memory.mlp_tiles=2 => memory.mlp_tiles | 2 | every layer | 1 or null
    parallel.experts.exchange=all_gather => parallel.experts.exchange | all_gather | model.experts
    parallel.experts.imbalance=1.5 => parallel.experts.imbalance | 1.5 | 1.0
    EXPERTS | parallel.experts.imbalance=0.9 => experts.imbalance | at least 1 | 0.9
    parallel.experts.backend=mosaic => parallel.experts.backend | mosaic | model.experts
    EXPERTS | parallel.experts.backend=mosiac => parallel.experts.backend | mosiac | mosaic
    parallel.experts.own_rows=first => parallel.experts.own_rows | first | model.experts
    EXPERTS | parallel.experts.own_rows=frist => parallel.experts.own_rows | frist | first
    parallel.experts.slices=2 => parallel.experts.slices | 2 | model.experts
    parallel.quantized.tokens=float8_e4m3fn => parallel.quantized.tokens | float8_e4m3fn | model.experts | null
    EXPERTS | parallel.quantized.tokens=float8_e5m2 => parallel.quantized.tokens | float8_e5m2 | float8_e4m3fn
    EXPERTS | parallel.experts.slices=0 => parallel.experts.slices | at least 1 | 0
    EXPERTS | parallel.experts.slices=aut => parallel.experts.slices | auto | 'aut'
    EXPERTS | parallel.experts.exchange=ragged => parallel.experts.exchange | ragged | all_to_all
    EXPERTS | parallel.experts.capacity=0.5 => parallel.experts.capacity | at least 1 | 0.5
    EXPERTS | model.kinds={a: {experts: 4}} | model.pattern={unit: [a]} => model.kinds.a.experts | mapping | 4
    run.steps=0 => run.steps: | at least 1 | got 0
    model.dropout=1 => model.dropout: | from 0 to below 1 | got 1.0
    run.steps=2147483648 => run.steps: | at most 2^31 - 1 | got 2147483648
    run.steps=1000000000000000000000000000000 => run.steps: | at most 64 bits | got 1000000000000000000000000000000
    model.z_loss=1e300 => model.z_loss: | at most 1e+30 | got 1e+300
    parallel.tensor=0 => parallel.tensor: | at least 1, or -1 for what remains | got 0
    memory.remat=ful => memory.remat: | none, full, selective, gemm_last, auto, a mapping or a list | got 'ful' | full?
    model.kinds.local.window=128 => model.kinds.local.window: no such key | model.kinds={local: {window: ...}}
    memory.remat.query=save => memory.remat.query: no such key | memory.remat={query: ...}
    model.layers.first=3 => model.layers.first: no such key | layers?
    model.kinds={1: {}} => model.kinds: | names of its entries that are text | got 1
    model.kinds={global: } => model.kinds.global: | a mapping | got null | {}?
    model.pattern=[a, b] => model.pattern: | a mapping or null | got [a, b] | {unit: [a, b]}?
    run.name=a/b => run.name: | name of one folder | got 'a/b' | run.dir
    run.name=.. => run.name: | name of one folder | got '..' | run.dir
    run.wandb=team/project => run.wandb: | name of a project, at most 128 letters and none of /\\#?%: |
        got 'team/project'
    run.profile=15 => run.profile: | first:last, for example 10:15 | got '15'
    run.profile=15:10 => run.profile: | first:last, for example 10:15 | got '15:10'
    run.profile=0:3 => run.profile: | first:last, for example 10:15 | got '0:3'
    run.profile=5000:5001 => run.profile: 5000:5001 | run.steps (1000)
    data.source=tokens => data.path: null | data.source: tokens | path of a token folder or a file of tokens
    data.path=train.npy => data.path: 'train.npy' | data.source is stdlib | data.source: tokens | or null
    model.layers=10000 | model.embed=16777216 | model.mlp=16777216 =>
        model: layers 10000, embed 16777216, mlp 16777216, heads 8, vocab None | 2e+19 parameters | at most 1e+15
    data.batch_size=16777216 | data.sequence_length=131072 =>
        data.batch_size x sequence_length x (1 + prefetch): 16777216 x 131072 x 3 tokens | at most 2^36
    parallel.fsdp=1048576 | parallel.tensor=8 => parallel: the mesh (fsdp 1048576 x tensor 8) | 8388608 devices |
        at most 2^20
    model.vocab=2147483647 => model.vocab: 2147483647 | 2147483648 | model.vocab_multiple (128) | at most 2^31 - 1
""",
    DPO=DPO, MASKED=MASKED, TAUGHT=TAUGHT, LORA=LORA, SIX=SIX, PATTERN=PATTERN, KINDS=KINDS, LATENT=LATENT,
    EXPERTS=EXPERTS,
)  # fmt: skip
def test_keys_that_do_not_fit_together_are_one_sentence(overrides, parts):
    with refused(*parts):
        validate(load_config(None, overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.kv_heads=2", "parallel.tensor=8"],  # key and value heads are replicated
        ["model.kv_heads=4", "parallel.tensor=2"],
        ["model.head_dim=31", "model.position=learned"],  # only the rotation needs pairs
        ["model.head_dim=31", "model.position=none"],
        ["model.kinds={a: {position: none}, b: {}}", "model.pattern={unit: [a, b]}"],
        ["model.embed=100", "model.head_dim=16"],
        ["parallel.expert=8"],  # for dense weights another data axis
        ["parallel.fsdp=8", "parallel.zero=0"],
        ["parallel.schedule=one-stage"],
        ["model.layers=6", "parallel.pipe=2", "parallel.stage_layers=[1, 5]", "parallel.pipe_ends=shared"],
        ["model.vocab=61", "parallel.tensor=8"],  # padded to 128
        ["run.steps=5"],  # shorter than the default warm-up
        ["data.source=tokens", "data.path=a.npy"],
        ["run.profile=10:15"],
        ["distributed.processes=2", "distributed.process_id=1", "distributed.coordinator=10.0.0.1:1234"],
    ],
)
def test_what_is_unusual_but_right_is_let_through(overrides):
    validate(load_config(None, overrides))


@refusals("""
    parallel.tensor=-1 => model.heads: 8 | not divisible by parallel.tensor
    parallel.context=-1 | data.sequence_length=40 => data.sequence_length: 40 | parallel.context
    parallel.fsdp=-1 => data.batch_size: 8 | parallel.replica x fsdp
    parallel.pipe=-1 => parallel.pipe | 16 x 1 chunks | 4 layers
    parallel.fsdp=-1 | parallel.hpz=3 | data.batch_size=16 => parallel.hpz (3) | 15 or 18
    parallel.replica=-1 | parallel.fsdp=16 | data.batch_size=16 | parallel.overlap.shard_state_over_replicas=true =>
        parallel.overlap.shard_state_over_replicas: true | parallel.replica is 1
    parallel.tensor=-1 | model.heads=16 | model.kv_heads=16 | model.vocab=61 | model.vocab_multiple=1 =>
        model.vocab (padded to a multiple of 1): 61 | parallel.tensor (16)
""")
def test_a_free_axis_is_checked_once_its_size_is_known(overrides: list[str], parts: tuple[str, ...]):
    config = load_config(None, overrides)
    validate(config)
    with refused(*parts):
        resolve_config(config, 16, validated=True)


def test_the_known_axes_are_checked_beside_a_free_one():
    with refused("data.batch_size: 8", "parallel.replica x fsdp", "(3)"):
        validate(load_config(None, ["parallel.fsdp=-1", "parallel.replica=3"]))


def test_the_steps_of_a_profile_are_read():
    assert profile_steps("10:15") == (10, 15)
    assert profile_steps("3:3") == (3, 3)


def test_layers_that_share_keys_need_no_projection_of_values_where_no_layer_has_one():
    parts = []
    for as_values in ("true", "false"):
        config = load_config(None, [PATTERN, KINDS, f"model.keys_as_values={as_values}"])
        validate(config)
        parts.append(declare_layer(kind_model(config.model, "b")).parts)
    assert parts[0] == parts[1]
