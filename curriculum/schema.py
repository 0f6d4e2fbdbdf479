"""What a recipe says: frozen dataclasses, one per section of the YAML file.

A recipe has two halves. Everything outside `runtime` is *identity*: it decides what is
computed. `RuntimeSpec` decides where and how fast, and never enters a fingerprint. The two are separate sections
so that no path, region or worker count can reach a hash by accident.

Values are only *shaped* here; `curriculum.load` builds them from YAML and overrides, `curriculum.validate` checks
what no single field can know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from curriculum.fields import declared
from curriculum.ladder_spec import LadderSpec
from curriculum.model_spec import ModelSpec
from curriculum.optimizer_spec import OptimizerSpec

CLEANING_FILTERS = ("c4", "fineweb", "gopher_quality", "gopher_repetition")


@dataclass(frozen=True, kw_only=True)
class CleaningSpec:
    """What is removed from a source before tokenization. Never for Dolma 3, whose duplicates are upsampling by design."""

    filters: tuple[str, ...] = ()
    """Names of CLEANING_FILTERS (datatrove's), applied in this order."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Filter name -> keyword arguments of the datatrove filter."""
    dedup: str = "none"
    """`none`, `exact` (equal texts) or `minhash` (near-duplicates: 5-grams, 14 buckets of 8 hashes)."""
    max_removed: float = declared(0.95, at_least=0, at_most=1)
    """Share of the documents read above which cleaning is refused: it took away more than was meant. Part of no identity."""

    def __post_init__(self) -> None:
        for name in (*self.filters, *self.settings):
            if name not in CLEANING_FILTERS:
                raise ValueError(f"clean.filters: {name!r} is unknown; known: {', '.join(CLEANING_FILTERS)}")
        if self.dedup not in ("none", "exact", "minhash"):
            raise ValueError(f"clean.dedup: {self.dedup!r} is not one of 'none', 'exact', 'minhash'")


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """A named body of text. Its identity is its pin (the content), not where it lies (`runtime.locations`)."""

    builtin: str | None = None
    """`stdlib-code` or `stdlib-prose`: real text of this Python installation, laid out once into storage."""
    globs: tuple[str, ...] = ("**/*.jsonl.zst", "**/*.jsonl.gz", "**/*.jsonl", "**/*.parquet")
    """Which files below the location belong to the source; explicit, so that nothing is picked by listing order."""
    tokens: int | None = declared(None, at_least=1)
    """As published, for plans made before anything is staged; never part of an identity."""
    documents: int | None = declared(None, at_least=1)
    special_tokens: str = "text"
    """`text`: a literal `<|endoftext|>` in a document is text. `keep`: it is the control token (StackEdu-FIM)."""
    token_dtype: str = declared("", absent_at="")
    """How wide the ids of headerless token files are: uint8, uint16, uint32, int32 or int64; empty: proved from the files."""
    text_key: str = declared("text", absent_at="text")
    """Field, or parquet column, that holds a document's text. Part of the identity where it is not `text`."""
    id_key: str = declared("", absent_at="")
    """Field whose value names a document in `ncp which-docs` in place of its line; empty: the line names it."""
    clean: CleaningSpec | None = None
    """Filters and deduplication before tokenization, as a step of its own; None leaves the source as it is."""


@dataclass(frozen=True, kw_only=True)
class TokenizerTraining:
    """A byte-level BPE trained by a step of the DAG, for runs too small for the 100,278-entry dolma2 vocabulary."""

    vocab_size: int = declared(6144, at_least=257, at_most=10_000_000)
    sources: tuple[str, ...] = ()
    """Trained on these sources; empty means the sources of the first stage's mixture."""
    max_bytes_per_source: int = declared(8_000_000, at_least=1)
    """Only the first bytes of each source, in pin order: enough for a small vocabulary, bounded at any size."""


@dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """Exactly one of `name` (an asset such as `dolma2`, or a Hub id), `file`, or `train`; the first two with `sha256`."""

    name: str | None = None
    file: str | None = declared(None, absent_at=None)
    """Path or URL of a tokenizer.json. Its sha256 is its identity, not where it lies."""
    sha256: str | None = None
    train: TokenizerTraining | None = None
    eos_token: str = declared("", absent_at="")
    """The control token that closes a document; empty: `<|endoftext|>`. Llama's is `</s>` or `<|end_of_text|>`."""


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """How documents become shards."""

    shard_tokens: int = declared(32 * 1024 * 1024, at_least=1)
    """A shard is closed once it holds this many tokens."""
    group_bytes: int = declared(256 * 1024 * 1024, at_least=1)
    """Input files are grouped, in pin order, into units of staging work of at least this many bytes."""
    heldout_fraction: float = declared(0.001, at_least=0, below=1)
    """Share of documents held out, chosen by a hash of their normalised text, so duplicates go together."""
    max_line_bytes: int = declared(256 * 1024 * 1024, at_least=1)
    bad_line_tolerance: float = declared(0.001, at_least=0, at_most=1)
    """Share of unreadable lines above which a source is refused."""


@dataclass(frozen=True, kw_only=True)
class PrecisionSpec:
    """Compute and reduction types. Master weights and optimizer state are always float32."""

    param: str = "float32"
    reduce: str = "float32"


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    """Learning rate as a function of the step; the peak is `optimizer.lr` (`curriculum.schedule`)."""

    kind: str = "cosine"
    """`cosine`, `linear` or `constant`, after a linear warm-up."""
    warmup_steps: int = declared(0, at_least=0)
    final_ratio: float = declared(0.1, at_least=0, at_most=1)
    """LR at the horizon as a share of the peak."""
    half_from_step: int | None = declared(None, at_least=0)
    """A cosine that was re-planned half way (OLMo 3 7B): from this step on, the second half of a longer one, ..."""
    half_horizon_tokens: int | None = declared(None, at_least=1)
    """... which ends here."""


@dataclass(frozen=True, kw_only=True)
class InitSpec:
    """Where a stage's weights come from. Without `from_` they are drawn from the stage's seed."""

    from_: str | None = None
    """Name of an earlier stage, whose milestone at its stop is loaded; or a checkpoint from outside the run: a name whose
    place is in `runtime.locations`, or the place itself (`jobs.runs.initial_checkpoint`). Written `from:` in YAML."""
    load: str = "weights+optimizer"
    """`weights`, or `weights+optimizer` (OLMo 3's transition): step and data position start anew. `full` goes on at the
    parent's step, data position and skip window, under the stage's own schedule. The seed is always the stage's own."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSpec:
    """What is measured on the milestone at the stage's stop."""

    suites: tuple[str, ...] = ("quick",)
    limit: int = declared(0, at_least=0)
    """Examples per family, drawn with a fixed seed; 0 means all."""
    heldout_tokens: int = declared(262_144, at_least=0)
    """At most this many held-out tokens per source."""
    when: str = "before_next_stage"
    """`before_next_stage`, or `beside`: while the next stage trains, on resources of its own. Part of no identity."""
    every_steps: int = declared(0, at_least=0)
    """Also evaluate the milestones at multiples of this step; 0: only the one at the stop."""
    data: str = ""
    """A source of questions in the published package's layout, instead of it; the questions' content is then identity."""


@dataclass(frozen=True, kw_only=True)
class StabilitySpec:
    """Skipping optimizer steps whose loss or gradient norm is an outlier, as OLMo 3's optimizer does."""

    skip_sigmas: float = declared(6.0, at_least=0)
    """Standard deviations above the window's mean beyond which a step is skipped; 0 switches this off."""
    window: int = declared(128, at_least=2, at_most=1_000_000)
    """Steps that are looked back on; nothing is skipped before half of it is there."""
    max_skips: int = declared(20, at_least=0)
    """Training stops, keeping its last milestone, when more steps than this were skipped in the stage; 0: never."""


@dataclass(frozen=True, kw_only=True)
class GateSpec:
    """A bound that the stage's evaluation must meet before a stage that starts from it may begin. Part of no identity."""

    metric: str = "mixture.model.bits_per_byte"
    """Dotted path into the evaluation; `mixture` is the held-out average with the stage's own weights."""
    max: float | None = None
    min: float | None = None


@dataclass(frozen=True, kw_only=True)
class StageSpec:
    """One stage of the curriculum."""

    mixture: Mapping[str, float] = declared(above=0, at_most=1e18)
    """Source -> weight; weights need not sum to one."""
    tokens: int = declared(at_least=1)
    """Where the stage stops. Not part of the trajectory's identity: raising it continues the stage."""
    horizon_tokens: int | None = declared(None, at_least=1)
    """Where the schedule ends; None means `tokens`. Part of the identity: it bends the LR curve."""
    sequence_length: int = declared(8192, at_least=2, at_most=16_777_216)
    global_batch_tokens: int = declared(4_194_304, at_least=1)
    optimizer: OptimizerSpec
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    stability: StabilitySpec = field(default_factory=StabilitySpec)
    seed: int = declared(0, at_least=0)
    init: InitSpec = field(default_factory=InitSpec)
    packing: str = "stream"
    """`stream`: attention and chunks cross documents, as in OLMo 3's first two stages. `doc`: they start anew with each."""
    repetition_filter: bool = False
    """Leave windows in which a short pattern repeats without labels (OLMo-core's instance filter: 1-13 tokens, 32 times)."""
    order_block: int = declared(65_536, at_least=1, at_most=1_048_576)
    """K: the mixture is exact in every block of K windows."""
    max_repetition: float = declared(1.0, above=0)
    """How often a window of one source may be drawn, at most, before the stop."""
    on_shortage: str = "error"
    """`error` or `repeat`: what to do when a source holds fewer windows than `max_repetition` allows for."""
    evaluation: EvaluationSpec = field(default_factory=EvaluationSpec)
    gate: GateSpec | None = None
    """Beside it, a loss that is not finite or is spiking always refuses the next stage."""


@dataclass(frozen=True, kw_only=True)
class NotifySpec:
    """Whom to tell when a run is done, failed or refused, and of every alert."""

    url: str = ""
    """A webhook that takes JSON, on this machine or at the root of another. Any other address is a secret: name its variable."""
    url_env: str = ""
    """The environment variable of the driver that holds the webhook's URL. Only the name is kept."""
    command: str = ""
    """A command line that gets the same JSON on its standard input."""


@dataclass(frozen=True, kw_only=True)
class RuntimeSpec:
    """Where and how fast. Never part of an identity."""

    num_workers: int | tuple[int, int] = declared(2, at_least=1, at_most=1_000_000)
    """Training workers; `[min, max]` is elastic: as many as the cluster has room for, asked at every attempt, and more
    from a milestone on when there is room for more (jobs/training/elastic.py)."""
    elastic_check_seconds: float = declared(30.0, above=0)
    """How often an elastic stage looks for room for more workers."""
    shard_size: int = declared(0, at_least=0)
    """Workers over which one copy of the model is sharded, the copies being replicas (HSDP); 0 shards over all of them.
    The number of workers must be a multiple of it."""
    activation_checkpointing: bool = False
    """Recompute each transformer block in the backward pass instead of keeping its activations."""
    compile: bool = False
    """torch.compile for each layer. Minutes at the start of every attempt; of no use on a CPU."""
    peak_flops_per_worker: float = declared(0.0, at_least=0)
    """What a worker's device could do, in operations per second at the compute precision; 0: no `mfu` column."""
    cpus_per_worker: float = declared(0.5, above=0)
    gpus_per_worker: float = declared(0.0, at_least=0)
    micro_batch_size: int = declared(4, at_least=1)
    """Sequences per worker and forward pass; gradient accumulation makes up the global batch."""
    staging_tasks: int = declared(2, at_least=1)
    staging_cpus_per_task: float = declared(0.5, above=0)
    checkpoint_every_steps: int = declared(1000, at_least=1)
    """Ephemeral milestones: what a crash may cost at most. The newest `keep_checkpoints` are kept, the stage's last for ever."""
    keep_checkpoints: int = declared(3, at_least=1)
    """Newest milestones that stay, so that a damaged one costs the steps since the one before and not the stage."""
    permanent_checkpoint_every_steps: int = declared(0, at_least=0)
    """Milestones that are kept for ever, written even between ephemeral ones; 0: only those that a run or stage ends at."""
    async_checkpoints: bool = True
    """Write milestones beside the training, from a copy of the state in host memory; false saves that memory."""
    log_every_steps: int = declared(1, at_least=1)
    parallel_steps: int = declared(2, at_least=1, at_most=1_000)
    """Independent steps that run at the same time: sources being staged, evaluations beside training."""
    retries: int = declared(3, at_least=0)
    """New attempts at a step after infrastructure failures (a lost worker, a full disk) with no milestone between them."""
    preemption_retries: int = declared(1000, at_least=0)
    """New attempts after the machine was taken away by whoever lent it. Bad input is never tried again."""
    retry_backoff_seconds: float = declared(1.0, at_least=0)
    """Pause before the first new attempt, doubled with each further failure, half of it drawn at random."""
    retry_backoff_limit_seconds: float = declared(300.0, at_least=0)
    node_wait_seconds: float = declared(600.0, at_least=0)
    """How long a run waits at its start for a cluster that is still too small, before it says so and ends."""
    cluster_grows: bool = False
    """An autoscaler adds nodes when a step asks for them: a cluster that is too small at the start is only mentioned."""
    threads_per_worker: int = declared(1, at_least=1, at_most=1_024)
    """CPU threads of a training worker; two are slower than one when cores are shared."""
    local_cpus: int = declared(2, at_least=1, at_most=65_536)
    """Logical CPUs of the local Ray that `ncp run` starts when no cluster is named."""
    object_store_mib: int = declared(256, at_least=75)
    shard_cache_dir: str = ""
    """With remote storage: a local folder for whole shards, used when the stage's mixture fits in `shard_cache_bytes`."""
    shard_cache_bytes: int = declared(0, at_least=0)
    hang_timeout_seconds: float = declared(1800.0, at_least=0)
    """A worker that takes no step for this long is dumped and ended; 0 switches this off."""
    locations: Mapping[str, str] = field(default_factory=dict)
    """Name of a source, or of a checkpoint that a stage starts from -> directory or URL. Builtin sources need none."""
    notify: NotifySpec = field(default_factory=NotifySpec)
    alert_dead_codebook_share: float = declared(0.5, at_least=0, at_most=1)
    """Alert when a larger share of the codewords stays unused."""
    evaluation_actors: int = declared(2, at_least=1)
    """Actors of an evaluation, each as large as a training worker; the numbers do not depend on how many."""
    unsafe_execution: bool = False
    """Run generated programs where they cannot be contained."""
    wandb_project: str = ""
    """Empty: no W&B. Otherwise metrics also go there, offline unless an API key is present."""

    @property
    def min_workers(self) -> int:
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[0]

    @property
    def max_workers(self) -> int:
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[1]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole run: sources, model, stages, and where to run them."""

    recipe: str
    """Its name; runs are called `{recipe}-{6 hex}`."""
    description: str = ""
    tokenizer: TokenizerSpec
    sources: Mapping[str, SourceSpec]
    data: DataSpec = field(default_factory=DataSpec)
    model: ModelSpec
    precision: PrecisionSpec = field(default_factory=PrecisionSpec)
    mixes: Mapping[str, Mapping[str, float]] = declared(default_factory=dict, above=0, at_most=1e18)
    """Named mixtures for stages to refer to, as `mixture: ${mixes.NAME}`; only what a stage mixes is identity."""
    stages: Mapping[str, StageSpec]
    """In order of execution."""
    ladder: LadderSpec | None = None
    """Sizes by budgets for a scaling law (`ncp scaling`), made of the first stage. Part of no identity."""
    generations: Mapping[str, int] = declared(default_factory=dict, at_least=0)
    """Step name -> how often it was asked to be computed anew (`--force`). Above 0 it is part of the step's identity."""
    runtime: RuntimeSpec = field(default_factory=RuntimeSpec)
