"""Ranges and combinations of settings: what is refused, in which words, all at once; and what is allowed."""

from __future__ import annotations

import shlex

import pytest

from adadepth.errors import ConfigError, UserError, nearest
from adadepth.settings import ExperimentConfig
from tests.configs.support import configured

# A command, and a part of the one line that is said of it.
MISTAKES = [
    # ---- ranges and combinations of any run
    ("act_tiny model.act_penalty=-0.1", "model.act_penalty=-0.1: must be at least 0"),
    ("act_tiny model.act_penalty=nan", "model.act_penalty=nan: must be at least 0"),
    ("act_tiny model.act_epsilon=0", "model.act_epsilon=0.0: must be above 0 and below 1"),
    ("act_tiny model.act_epsilon=1", "model.act_epsilon=1.0: "),
    ("act_tiny model.halt_bias_init=inf", "model.halt_bias_init=inf: must be a finite number"),
    ("act_tiny model.execution=ragged model.state_rule=basic",
     "model.execution=ragged: needs model.state_rule=single or"),
    ("act_tiny model.execution=ragged model.attn_implementation=flex_attention",
     "needs model.attn_implementation eager,"),
    ("act_tiny model.execution=ragged runtime.compile=true", "model.execution=ragged: not with runtime.compile=true"),
    ("act_tiny model.num_attention_heads=7", "model.num_attention_heads=7: must divide model.hidden_size=128"),
    ("act_tiny model.num_attention_heads=0", "model.num_attention_heads=0: "),
    ("act_tiny model.hidden_dropout_prob=1", "model.hidden_dropout_prob=1.0: "),
    ("act_tiny dataset.sequence_length=513", "dataset.sequence_length=513: the model has only"),
    ("act_tiny dataset.masking.probability=0", "dataset.masking.probability=0.0: "),
    ("act_tiny dataset.masking.random_share=0.3", "mask_share + random_share = 1.1, must be at most 1"),
    ("act_tiny dataset=text", "dataset.path: dataset.source=local needs a file"),
    ("act_tiny dataset.source=hub", "dataset.hub: dataset.source=hub needs a list"),
    ("act_tiny dataset.source=hub 'dataset.hub=[{paht: a}]'",
     "dataset.hub[0].paht: unknown key (did you mean 'path'?)"),
    ("act_tiny dataset.streaming=true", "dataset.streaming=true: the embedded corpus is not streamed"),
    ("act_tiny dataset.path=a.txt", "dataset.path=a.txt: read only with dataset.source=local or auto"),
    ("act_tiny dataset.evaluation_path=a.txt", "dataset.evaluation_path=a.txt: read only with dataset.source=local"),
    ("act_tiny dataset=wikipedia_bookcorpus trainer.max_steps=-1", "trainer.max_steps=-1: dataset.streaming=true"),
    ("act_tiny trainer.max_steps=0", "trainer.max_steps=0: must be at least 1, or -1"),
    ("act_tiny trainer.per_device_train_batch_size=0", "trainer.per_device_train_batch_size=0: "),
    ("act_tiny trainer.learning_rate=0", "trainer.learning_rate=0.0: must be above 0"),
    ("act_tiny trainer.save_steps=150", "trainer.save_steps=150: must be a multiple of trainer.eval_steps=250"),
    ("act_tiny trainer.save_strategy=epoch", "trainer.save_strategy=epoch: must equal trainer.eval_strategy=steps"),
    ("act_tiny \"trainer.eval_strategy='no'\"", "trainer.eval_strategy=no: must be steps or epoch"),
    ("act_tiny trainer.eval_steps=null trainer.save_steps=5",
     "trainer.eval_steps: trainer.eval_strategy=steps needs it"),
    ("act_tiny trainer.precision=fp16 trainer.use_cpu=true", "trainer.precision=fp16: needs a GPU"),
    ("act_tiny trainer.fsdp=true trainer.deepspeed=ds.json", "trainer.fsdp and trainer.deepspeed: choose one"),
    ("act_tiny mode=evaluate checkpoint=a trainer.fsdp=true",
     "trainer.fsdp=true: read only with mode=train, but mode="),
    ("act_tiny trainer.deepspeed=3", "trainer.deepspeed=3: must be a JSON file or a mapping"),
    ("act_tiny trainer.dataloader_prefetch_factor=2", "trainer.dataloader_prefetch_factor: needs runtime.num_workers"),
    ("act_tiny runtime.num_workers=-1", "runtime.num_workers=-1: must be from 0 to 1024"),
    ("act_tiny mode=evaluate", "checkpoint: mode=evaluate needs it"),
    ("act_tiny mode=report", "run: mode=report needs it"),
    ("act_tiny checkpoint=a",
     "checkpoint=a: read only with mode=evaluate, predict, probe or serve, but mode=train; to start"),
    ("act_tiny mode=evaluate checkpoint=a resume=latest",
     "resume=latest: read only with mode=train, but mode=evaluate"),
    ("act_tiny seed=-1", "seed=-1: must be from 0 to 2^32 - 1"),
    ("act_tiny name=a/b", "name=a/b: must be a plain folder name"),
    ("act_tiny optimise=loss", "optimise=loss: must start with one of train/, eval/, halting/"),
    ("act_tiny optimise=halting/all/meen", "no run has such a metric (did you mean 'halting/all/mean'?)"),
    ("act_tiny optimise=train/los", "no run has such a metric (did you mean 'train/loss'?); known: train/epoch, "),
    ("act_tiny optimise=cost/executed_over_ful", "no run has such a metric (did you mean 'cost/executed_over_full'?)"),
    ("act_tiny optimise=search/expected_block", "no run has such a metric (did you mean 'search/expected_blocks'?)"),
    ("act_tiny optimise=budget/mesured", "no run has such a metric (did you mean 'budget/measured'?)"),
    ("act_tiny optimise=search/mean_entropy", "model=albert_act has no architectures to search"),
    ("act_tiny optimise=budget/measured budget=none",
     "optimise=budget/measured: only a training with budget.target has it"),
    ("act_tiny optimise=train/loss mode=evaluate checkpoint=a", "optimise=train/loss: only a training has it"),
    ("act_tiny optimise=halting/all/mean trainer.halting_statistics=false", "needs trainer.halting_statistics=true"),
    ("act_tiny optimise=eval/mlm_los",
     "optimise=eval/mlm_los: an evaluation has no such metric (did you mean 'mlm_loss'?)"),
    ("act_tiny trainer.metric_for_best_model=eval_lost",
     "trainer.metric_for_best_model=eval_lost: an evaluation has no such"),
    ("act_tiny +trainer.foo=1", "trainer.foo: unknown key"),
    # ---- sizes that nobody has, before they are counted out
    ("loop_hops mode=estimate model.num_loops=1000000000", "model.num_loops=1000000000: "),
    ("loop_hops mode=estimate model.core=100000", "model.core=100000: must be at most 4096"),
    ("act_tiny mode=estimate model.num_hidden_layers=1000000", "model.num_hidden_layers=1000000: must be at most 4096"),
    ("act_tiny mode=estimate model.intermediate_size=1000000000000",
     "model.intermediate_size=1000000000000: must be at most "),
    ("act_tiny mode=estimate tokenizer.vocab_size=1000000000000", "tokenizer.vocab_size=1000000000000: "),
    ("par_tiny mode=estimate estimate.words=1000000000000", "estimate.words=1000000000000: must be at most "),
    ("act_tiny mode=estimate trainer.per_device_train_batch_size=1000000000",
     "trainer.per_device_train_batch_size=1000000000: "),
    ("act_tiny mode=estimate estimate.share=0", "estimate.share=0.0: must be above 0 and at most 1"),
    # ---- fine-tuning
    ("ponder_tiny model.target_halt_probability=0", "model.target_halt_probability=0.0: "),
    ("ponder_tiny model.target_halt_probability=1", "model.target_halt_probability=1.0: "),
    ("ponder_tiny model.prior=uniform", "0.25: read only with model.prior=geometric; with model.prior=uniform set it"),
    ("ponder_tiny model.kl_penalty_factor=-1", "model.kl_penalty_factor=-1.0: must be at least 0"),
    ("ponder_tiny model.halting_head_layers=3", "read only with model.halting_head=linear_cat"),
    ("ponder_tiny model.hidden_size=null", "model.hidden_size: a value is missing; without model.pretrained"),
    ("ponder_tiny task=pretrain", "dataset=bigram_shift: task=pretrain reads a corpus"),
    ("ponder_tiny dataset=wikitext2", "dataset=wikitext2: task=finetune reads labelled data"),
    ("ponder_tiny dataset=parity_vectors", "model=ponder_albert: dataset=parity_vectors needs a recurrent cell"),
    ("ponder_parity model=ponder_albert_mini", "model=ponder_albert: dataset=parity_vectors needs a recurrent"),
    ("ponder_tiny model=parity_rnn", "model=ponder_rnn: dataset=bigram_shift needs a model of tokens"),
    ("ponder_tiny exit_rules=[all]", "exit_rules=['all']: read only with mode=evaluate checkpoint=latest"),
    ("ponder_tiny seeds=0", "seeds=0: "),
    ("ponder_tiny seeds=2 resume=latest", "seeds=2: read only with mode=train, and not with resume"),
    ("ponder_tiny optimise=eval/scor", "optimise=eval/scor: "),
    ("ponder_cola optimise=eval/accuracy", "optimise=eval/accuracy: "),
    ("ponder_cola dataset.source=local", "dataset.path: "),
    ("ponder_cola dataset.hub.path=null", "dataset.hub.path: "),
    ("ponder_cola dataset.text_columns=[]", "dataset.text_columns=[]: must name one column, or two"),
    ("ponder_cola dataset.evaluation_splits=[]", "dataset.evaluation_splits=[]: "),
    ("ponder_cola dataset.submission=[a,b]", "dataset.submission=['a', 'b']: needs a name for each of ['test']"),
    ("ponder_cola '+dataset.test_hub.ax={path: a}'", "dataset.test_hub.ax: not in dataset.test_splits=['test']"),
    ("ponder_cola dataset.test_splits=[ax] '+dataset.test_hub.ax={path: a}'",
     "dataset.test_hub.ax: needs path, name and split, has path"),
    ("ponder_parity dataset.train_ones=[1,97]", "dataset.train_ones=[1, 97]: must be [lowest, highest] within 1"),
    ("ponder_parity dataset.train_ones=[]", "dataset.train_ones=[]: must be [lowest, highest] within 1 and"),
    ("ponder_parity dataset.train_ones=[0,0]", "dataset.train_ones=[0, 0]: must be [lowest, highest] within 1"),
    ("ponder_parity dataset.train_ones=[] dataset.easy_epochs=1 dataset.easy_ones=0", "dataset.train_ones=[]"),
    ("ponder_parity dataset.extrapolation_ones=[]", "dataset.extrapolation_ones=[]: must be [lowest, highest]"),
    ("ponder_parity dataset.extrapolation_ones=[5,3]", "dataset.extrapolation_ones=[5, 3]: must be [lowest, highes"),
    # ---- tables and tagged sentences
    ("adalayers_tiny dataset=imdb dataset.held_out=null",
     "dataset.evaluation_splits=held_out: needs dataset.held_out, the share of the training rows set aside"),
    ("adalayers_tiny dataset=imdb dataset.evaluation_splits=[test]",
     "dataset.held_out=0.1: name held_out in dataset.evaluation_splits, to evaluate on it"),
    ("adalayers_tiny dataset=imdb dataset.held_out=1", "dataset.held_out=1.0: "),
    ("adalayers_tiny dataset=bigram_shift dataset.held_out=0.1 dataset.evaluation_splits=[held_out]",
     "dataset.held_out=0.1: read only with rows of your own, dataset.source=local dataset.path=PATH, or of the hub"),
    ("adalayers_tiny dataset=wikiann dataset.hub.path=null", "dataset.hub.path: dataset.source=hub needs it"),
    ("adalayers_tiny dataset=wikiann dataset.source=local",
     "dataset.path: dataset.source=local needs a folder, or a mapping of splits to files"),
    ("adalayers_tiny dataset=wikiann dataset.source=embedded",
     "dataset.source=embedded: tagged sentences are read from the hub or local files"),
    ("adalayers_tiny dataset=wikiann dataset.metrics=[f1]", "dataset.metrics=f1: not a metric of a tagging"),
    ("adalayers_tiny dataset=wikiann dataset.labels=[NOUN,VERB]",
     "dataset.metrics=entity_f1: needs tags O, B-TYPE and I-TYPE, but there is NOUN; name them with dataset.labels, "
     "or use token_accuracy"),
    # ---- questions and multiple choice
    ("ponder_cola dataset=squad", "model=ponder_albert: dataset=squad answers questions, for albert_act only"),
    ("act_swag model=albert_pretrained", "model=albert: dataset=swag chooses among endings, for albert_act only"),
    ("act_swag model=pabee_pretrained", "model=multi_exit_albert: dataset=swag chooses among endings"),
    ("act_squad dataset.stride=400",
     "dataset.stride=400: must be at most 317, what dataset.sequence_length=384 leaves after "
     "dataset.max_question_length=64 and 3 special tokens; else text between two windows is lost"),
    ("act_squad dataset.stride=0", "dataset.stride=0: "),
    ("act_squad dataset.n_best=0", "dataset.n_best=0: "),
    ("act_squad dataset.max_answer_length=0", "dataset.max_answer_length=0: "),
    ("act_squad dataset.null_score_threshold=1",
     "dataset.null_score_threshold=1.0: read only with dataset.unanswerable=true, e.g. dataset=squad_v2"),
    ("act_squad dataset=squad_v2 dataset.null_score_threshold=inf",
     "dataset.null_score_threshold=inf: must be a finite number"),
    ("act_squad dataset.labels=[yes,no]",
     "dataset.labels=['yes', 'no']: questions are answered with text, not with a class"),
    ("act_squad dataset.metrics=[accuracy]", "dataset.metrics=accuracy: not a metric of question answering"),
    ("act_squad dataset.source=embedded", "dataset.source=embedded: squad is read from the hub or local files"),
    ("act_squad model.readout_weight=0.5", "model.readout_weight=0.5: question answering has no readouts; set it to 0"),
    ("act_squad mode=evaluate checkpoint=x exit_rules=[all]",
     "exit_rules=['all']: dataset=squad answers questions; read only with classes, values and tags"),
    ("act_swag mode=evaluate checkpoint=x exit_rules=[all]",
     "exit_rules=['all']: dataset=swag chooses among endings; read only with classes, values and tags"),
    ("act_squad trainer.metric_for_best_model=eval_exact", "trainer.metric_for_best_model=eval_exact: "),
    ("act_swag dataset.metrics=[f1]", "dataset.metrics=f1: not a metric of multiple choice"),
    ("act_swag dataset.context_columns=[a,b,c]",
     "dataset.context_columns=['a', 'b', 'c']: must name one column, or two; the second begins every ending"),
    ("act_swag dataset.ending_columns=[ending0]", "dataset.ending_columns=['ending0']: must name two columns at least"),
    ("act_swag dataset.ending_columns=[sent1,ending0]",
     "dataset.ending_columns=['sent1', 'ending0']: the column sent1 is named twice"),
    ("act_swag dataset.labels=[a,b]",
     "dataset.labels=['a', 'b']: must name each of the 4 dataset.ending_columns, in order"),
    # ---- treebanks
    ("act_tiny dataset=treebank dataset.path=folder",
     "dataset=treebank: read with mode=evaluate checkpoint=latest only; to train on CoNLL-U files take "
     "--config-name act_pos dataset=ud_pos"),
    ("par_tiny mode=evaluate checkpoint=latest dataset=treebank dataset.path=folder",
     "dataset=treebank: read by masked language models and taggers only, not with task=architecture_search"),
    ("act_tiny mode=evaluate checkpoint=latest dataset=treebank dataset.hub.path=null",
     "dataset.path: needs a folder or files of CoNLL-U, or dataset.hub.path"),
    ("act_tiny mode=evaluate checkpoint=latest dataset=treebank dataset.path=folder dataset.evaluation_splits=[]",
     "dataset.evaluation_splits=[]: at least one is needed; null takes validation and test"),
    ("act_pos mode=evaluate checkpoint=latest dataset=treebank dataset.path=folder exit_rules=[all]",
     "exit_rules=['all']: not read with dataset=treebank"),
    ("act_tiny mode=evaluate checkpoint=latest dataset=treebank dataset.path=folder budget.targets=[3]",
     "budget.targets=[3.0]: not read with dataset=treebank"),
    # ---- generated data
    ("act_maze dataset.walls=1", "dataset.walls=1.0: "),
    ("act_maze dataset.size=1", "dataset.size=1: a maze needs at least 2"),
    ("act_maze dataset.size=20 dataset.sequence_length=400 dataset.beyond_sizes=[]",
     "dataset.size=20: must be at most dataset.field=12"),
    ("act_maze dataset.beyond_sizes=[8]",
     "dataset.beyond_sizes=[8]: must be above dataset.size=8 and at most 12, each once"),
    ("act_maze dataset.beyond_sizes=[14]", "dataset.sequence_length=144: the largest maze has 196 cells"),
    ("act_maze dataset.field=17", "dataset.field=17: the model has only model.max_position_embeddings=12 positions"),
    ("act_maze model=ponder_albert_mini",
     "model=ponder_albert: dataset=maze labels symbols of its own, for albert_act"),
    ("act_hops dataset.train_hops=[3,8]",
     "dataset.train_hops=[3, 8]: must be [lowest, highest] within 0 and dataset.nodes / 2 - 1 = 7"),
    ("act_hops dataset.beyond_hops=[7]",
     "dataset.beyond_hops=[7]: must be [lowest, highest] within 0 and dataset.nodes / 2 - 1 = 7"),
    ("act_hops dataset.colours=9", "dataset.colours=9: must be from 2 to 8"),
    ("act_hops dataset.nodes=20", "dataset.sequence_length=16: there are dataset.nodes=20"),
    ("act_addition dataset.digits=24 dataset.beyond_digits=[] dataset.sequence_length=24",
     "dataset.digits=24: must be below dataset.field=24: a sum has a digit more"),
    ("act_addition dataset.beyond_digits=[20,20]",
     "dataset.beyond_digits=[20, 20]: must be above dataset.digits=12 and at most 23, each once"),
    ("act_addition dataset.sequence_length=16", "dataset.sequence_length=16: the longest sum has 21 digits"),
    ("act_addition dataset.nines=-0.1", "dataset.nines=-0.1: "),
    ("act_addition optimise=eval/accuracy", "optimise=eval/accuracy: "),
    # ---- budgets
    ("adalayers_tiny budget=depth", "budget.unit=updates: of model=adalayers, training can hold deepest_layer,"),
    ("act_tiny budget=blocks", "budget.unit=deepest_layer: of model=albert_act, training can hold updates, macs"),
    ("adalayers_tiny budget=blocks budget.target=2.5", "budget.target=2.5: must be a whole number of blocks"),
    ("adalayers_tiny budget=blocks budget.target=0.5", "budget.target=0.5: must be from 1, in deepest_layer"),
    ("adalayers_tiny budget=blocks model.distribution_cutoff=0", "budget.unit=deepest_layer: no weight of a softmax"),
    ("adalayers_tiny budget=blocks baseline=last_layer",
     "model.pick_one_layer_only and model.freeze_distribution leave"),
    ("adalayers_tiny budget=blocks baseline=uniform", "model.pick_one_layer_only and model.freeze_distribution leave"),
    ("adalayers_tiny budget=blocks baseline=depth_penalty",
     "model.lambda_distribution_depth=0.02 is a price beside it"),
    ("par_tiny budget=latency search.latency_weight=1", "budget.target=4: search.latency_weight=1 is a price"),
    ("par_network budget=latency", "budget.target=4: of par_xl only a search holds it"),
    ("par_tiny budget=depth", "budget.unit=updates: of model=par_xl, training can hold milliseconds"),
    ("adalayers_tiny mode=evaluate checkpoint=a budget.targets=[2.5]",
     "budget.targets=2.5: must be a whole number of blocks"),
    ("adalayers_tiny mode=evaluate checkpoint=a budget.targets=[2] budget.unit=expected_layer",
     "budget.unit=expected_layer: a trained model=adalayers is set in updates, deepest_layer"),
    # ---- Adalayers
    ("adalayers_tiny model.alpha_distribution=0", "model.alpha_distribution=0.0: must be above 0"),
    ("adalayers_tiny model.distribution_cutoff=1", "model.distribution_cutoff=1.0: must be at least 0 and below 1"),
    ("adalayers_tiny model.lambda_distribution_depth=-1", "model.lambda_distribution_depth=-1.0: must be at least 0"),
    ("adalayers_tiny model.attention_heads_num=7", "model.attention_heads_num=7: must divide model.project_dim=64"),
    ("adalayers_tiny model.freeze_base_model=false", "set features.cache=false"),
    ("adalayers_tiny trainer.fsdp=true features.cache=false",
     "trainer.fsdp=true: a frozen base stops in the middle of a pass"),
    ("adalayers_tiny features.limit_gib=0", "features.limit_gib=0.0: must be above 0"),
    ("adalayers_tiny trainer.schedule=plateau", "trainer.plateau_patience: trainer.schedule=plateau needs it"),
    ("adalayers_tiny trainer.plateau_patience=3",
     "trainer.plateau_patience=3: read only with trainer.schedule=plateau"),
    ("adalayers_tiny trainer.early_stopping_threshold=0.1", "read only with trainer.early_stopping_patience"),
    ("adalayers_tiny model=ponder_albert_mini dataset=wikiann tokenizer=trained", "dataset=wikiann tags words"),
    ("adalayers_tiny exit_rules=[all]", "exit_rules=['all']: read only"),
    # ---- PAR-XL
    ("par_tiny search.tau_start=0", "search.tau_start=0.0: must be above 0"),
    ("par_tiny search.tau_end=-1", "search.tau_end=-1.0: must be above 0"),
    ("par_tiny model.cutoffs=[9,9]", "model.cutoffs=[9, 9]: must be positive and increase"),
    ("par_tiny model.cutoffs=[0]", "model.cutoffs=[0]: must be positive and increase"),
    ("par_tiny model.proj_dims=[32]",
     "model.proj_dims=[32]: must be a positive width for each tail, of which there are 2"),
    ("par_tiny model.proj_dims=[32,0]",
     "model.proj_dims=[32, 0]: must be a positive width for each tail, of which there are 2"),
    ("par_base model.proj_dims=[256,128,64]", "model.proj_factor=1: read only without model.proj_dims=[256, 128, 64]"),
    ("par_tiny model.cutoff_clusters=3 model.cutoffs=[] model.proj_dims=[32]",
     "model.proj_dims=[32]: must be a positive width for each tail, of which there are 2"),
    ("par_tiny model.cutoff_clusters=3", "model.cutoff_clusters=3: chooses the cutoffs; set model.cutoffs=[]"),
    ("par_tiny model.cutoff_clusters=1 model.cutoffs=[]", "model.cutoff_clusters=1: must be at least 2"),
    ("par_tiny model.num_attention_heads=3", "model.num_attention_heads=3: must divide"),
    ("par_tiny model.architecture=sf", "model.architecture=sf: task=architecture_search searches it"),
    ("par_tiny search.method=two_phase search.gate_learning_rate=null",
     "search.gate_learning_rate: search.method=two_phase needs it"),
    ("par_tiny search.method=two_phase trainer.max_steps=-1",
     "trainer.max_steps=-1: search.method=two_phase needs the number of updates"),
    ("par_tiny search.architecture_share=0.9", "search.architecture_share=0.9: must be above 0 and at most 0.5"),
    ("par_tiny search.shapes=[[8,8]]", "search.shapes=[8, 8]: must be [length, memory, batch]"),
    ("par_tiny search.stages=[]", "search.stages=[]: at least one is needed, of search, derive, retrain, compare"),
    ("par_tiny search.stop_unchanged=75", "search.stop_unchanged=75.0: must be from 0 to 1"),
    ("par_tiny search.stop_unchanged=0.75 trainer.eval_strategy=no trainer.load_best_model_at_end=false",
     "search.stop_unchanged=0.75: compares evaluations, but trainer.eval_strategy=no"),
    ("par_tiny search.stop_unchanged=0.75 budget=latency budget.target=3",
     "budget.target=3: search.stop_unchanged=0.75 may end the search before its schedule"),
    ("par_tiny search.sampled_paths=0", "search.sampled_paths=0: "),
    ("par_tiny task=language_model search.latency_weight=1", "read only with task=architecture_search"),
    ("par_tiny trainer.fsdp=true", "trainer.fsdp=true: not in a search, whose gates are read between"),
    ("par_tiny dataset=python_docs", "task=architecture_search reads streams of text"),
    ("par_tiny model=albert_act_mini", "task=architecture_search trains par_xl"),
    ("par_tiny dataset.test_path=a.txt", "dataset.test_path=a.txt: read only with dataset.source=local"),
    ("par_tiny 'dataset.test_hub=[{path: a}]'", "dataset.test_hub=[{'path': 'a'}]: read only with dataset.source=hub"),
    ("par_base 'dataset.evaluation_hub=[{paht: a}]'", "dataset.evaluation_hub[0].paht: unknown key (did you mean"),
    ("par_tiny tokenizer=bytes tokenizer.vocab_size=9000", "tokenizer.vocab_size=9000: tokenizer.kind=byte has"),
    ("par_tiny tokenizer.vocab_size=null", "tokenizer.vocab_size: tokenizer.kind=unigram needs it"),
    ("par_tiny tokenizer=words tokenizer.symbols=[a]", "tokenizer.symbols=['a']: read only with tokenizer.kind"),
    ("par_network search.tau_end=0.5", "search: read only by a supernet"),
    ("act_tiny search.tau_end=0.5", "search: read only by models of par_xl, but this one is of albert_act"),
    ("act_tiny context.memory_length=3", "context: read only by models of par_xl, but this one is of albert_act"),
    ("act_tiny tokenizer.kind=word", "tokenizer.kind=word: read only with streams of text"),
]  # fmt: skip
ALLOWED = [
    "act_tiny model.act_penalty=0",
    "act_tiny dataset.sequence_length=512",
    "act_tiny trainer.save_strategy=best trainer.save_steps=150",
    "act_tiny trainer.load_best_model_at_end=false trainer.save_steps=150",
    "act_tiny trainer.max_grad_norm=0",
    "act_tiny mode=evaluate checkpoint=latest",
    "act_tiny mode=report run=latest",
    "act_tiny trainer.fsdp=true 'trainer.fsdp_config={version: 2}'",
    "act_tiny 'trainer.deepspeed={zero_optimization: {stage: 2}}'",
    "loop_hops mode=estimate",
    "par_tiny mode=estimate",
    "act_squad trainer.metric_for_best_model=eval_f1 optimise=eval/f1",
    "adalayers_tiny budget=blocks",
    "adalayers_tiny budget=layers",
    "adalayers_tiny budget=layers model.distribution_cutoff=0",
    "adalayers_tiny budget=blocks model.distribution_cutoff=0 model.topk_distribution=2",
    "adalayers_tiny budget=work",
    "adalayers_tiny mode=evaluate checkpoint=a budget.targets=[2,3,4]",
    "par_tiny budget=latency budget.target=2.5",
]


def laid(command: str) -> ExperimentConfig:
    """Return the checked configuration of a command."""
    return configured(*shlex.split(command))


@pytest.mark.parametrize(("command", "message"), MISTAKES, ids=[command for command, _ in MISTAKES])
def test_a_mistake_is_refused_in_one_line(command: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        laid(command)
    assert len([line for line in str(caught.value).splitlines() if message in line]) == 1, caught.value


@pytest.mark.parametrize("command", ALLOWED)
def test_the_edges_are_allowed(command: str) -> None:
    laid(command)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        laid("act_tiny budget=none seed=-1 model.act_penalty=-1 trainer.learning_rate=-1 mode=report")
    assert len(str(caught.value).splitlines()) == 4


@pytest.mark.parametrize("host", ["ü..x", "x..", "a" * 64, "a b", "http://x", "", "x/y"])
def test_a_host_that_no_system_can_look_up_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"serve\.host"):
        configured("act_tiny", "mode=serve", "checkpoint=x", f"serve.host='{host}'")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "0.0.0.0", "my-machine.example", "bücher.example"])
def test_names_and_addresses_are_hosts(host: str) -> None:
    assert configured("act_tiny", "mode=serve", "checkpoint=x", f"serve.host='{host}'").serve.host == host


@pytest.mark.parametrize(("value", "hint"), [
    ("refrence", " (did you mean 'reference'?)"), ("xyz", ""), (3, ""), ("Penalty", " (did you mean 'penalty'?)"),
])  # fmt: skip
def test_nearest(value: object, hint: str) -> None:
    assert nearest(value, ["reference", "penalty", "forced"]) == hint
    assert issubclass(ConfigError, UserError)
