"""Tables that cannot be read: one line names the key, the file, the line and what is allowed.

A case is the files of a folder, changed settings, and the parts of the error; error_support describes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adadepth.config import ChoiceConfig, LabelledConfig, QuestionConfig, Source, TaggingConfig, TokenizerConfig
from adadepth.config.data import HubTable, SequenceProblem
from adadepth.data import load_labelled_data
from adadepth.errors import UserError
from tests.treebank_support import TREEBANK

from .error_support import Files, has_parts, insert_folder, write_files
from .tokenizers_support import tokenizer

Case = tuple[Files, dict[str, Any], str]

HEAD = "text,label,number\n"
ROWS = [f"a cat {number},{'yes' if number % 2 else 'no'},{number}\n" for number in range(14)]
TABLE = {"train.csv": HEAD + "".join(ROWS[:12]), "validation.csv": HEAD + "".join(ROWS[12:])}
FILMS = "".join(f"neg,dull film {number}\n" for number in range(60))
MULTI = {"problem": SequenceProblem.multi_label, "metrics": ["micro_f1"]}
NAMES = ["O", "B-PER", "I-PER"]


def make_labels(*labels: Any, name: str = "train.csv") -> Files:
    """Return a table of texts with these labels, as CSV or JSON lines."""
    if name.endswith(".jsonl"):
        return {name: [{"text": "a cat", "label": value} for value in labels]}
    return {name: "text,label\n" + "".join(f"a cat,{value}\n" for value in labels)}


def make_columns(**values: list[Any]) -> Files:
    return {"train.parquet": values}


LABELS: list[Case] = [
    # names in the settings
    (TABLE, {"label_column": "lable"},
     "dataset.label_column=lable: dataset.path=FOLDER/train.csv has the columns text, label, number (did you mean "
     "'label'?)"),
    (TABLE, {"text_columns": ["text", "txt"]}, "dataset.text_columns=txt: ... (did you mean 'text'?)"),
    (TABLE, {"train_split": "trian"},
     "dataset.train_split=trian: no file trian with one of .parquet, ... in dataset.path=FOLDER; there is train.csv, "
     "validation.csv (did you mean 'train'?)"),
    (TABLE, {"evaluation_splits": ["validation", "dev"]}, "dataset.evaluation_splits=dev: no file dev with one of"),
    (TABLE, {"submission": ["CoLa"]}, "dataset.submission=CoLa: not a file of GLUE's server (did you mean 'CoLA'?)"),
    # columns that no name decides
    ({"train.csv": "text,review,label\na,a,a\n"}, {},
     "dataset.text_columns=sentence: dataset.path=FOLDER/train.csv has the columns text, review, label; name the one"),
    ({"train.csv": "a,b,label\na,a,a\n"}, {}, "has the columns a, b, label; name the one or two"),
    ({"train.csv": "text,class,target\na,a,a\n"}, {},
     "dataset.label_column=label: ... has the columns text, class, target; name the label"),
    ({"train.csv": "premise,question1,question2,hypothesis,label\na,a,a,a,a\n"}, {},
     "dataset.text_columns=sentence: ... has the columns premise, question1, question2"),
    (make_labels("a"), {"text_columns": ["sentence"]},
     "dataset.text_columns=sentence: ... has the columns text, label"),
    ({"train.csv": "text,class\na,a\n"}, {"label_column": "label"}, "dataset.label_column=label: ... columns text, "),
    # paths and splits
    (TABLE, {"path": "FOLDER/train.csv"},
     "dataset.evaluation_splits=validation: dataset.path=FOLDER/train.csv is one table, the split train; hold out "
     "some rows: dataset.held_out=0.1 'dataset.evaluation_splits=[held_out]'"),
    (TABLE, {"path": "FOLDERS"}, "dataset.path=FOLDERS: no such folder (did you mean 'tables'?)"),
    ({"empty/": ""}, {"path": "FOLDER/empty"}, "there is nothing"),
    (TABLE, {"path": {"train": "FOLDER/train.csv", "validatoin": "FOLDER/validation.csv"}},
     "dataset.evaluation_splits=validation: dataset.path names files for train, validatoin only (did you mean "
     "'validatoin'?)"),
    (TABLE, {"path": {"train": "FOLDER/trains.csv"}}, "dataset.path.train="),
    (TABLE | {"train.txt": "a"}, {"path": {"train": "FOLDER/train.txt", "validation": "FOLDER"}},
     "train.txt: not a table; known formats are .parquet"),
    (TABLE | {"train.tsv": "text\tlabel\na\tno\n"}, {},
     "train.csv, train.tsv all match the split train; choose one with 'dataset.path={train: FILE"),
    (make_labels("a", "b", name="train-00000-of-00002.csv") | {"train-00001-of-00002.csv": "text,other\na,b\n"}, {},
     "train-00001-of-00002.csv: its columns text, other differ from those of"),
    (TABLE, {"held_out": 0.01, "evaluation_splits": ["held_out"]},
     "dataset.name=table: the split held_out of dataset.path=FOLDER/train.csv has no rows"),
    (TABLE, {"held_out": 0.99, "evaluation_splits": ["held_out"]}, "the split train of ... train.csv has no rows"),
    # files
    (TABLE | {"train.csv": ""}, {}, "dataset.train_split=train: no file train"),
    (TABLE | {"train.csv": HEAD}, {}, "has the classes none; at least two"),
    (TABLE | {"train.csv": HEAD}, {"labels": ["no", "yes"]},
     "dataset.name=table: the split train of dataset.path=FOLDER/train.csv has no rows"),
    (TABLE | {"validation.csv": HEAD}, {}, "the split validation of dataset.path=FOLDER/validation.csv has no rows"),
    ({"train.csv": b"text,label\n\xff,a\n"}, {}, "dataset.path=FOLDER/train.csv: not UTF-8 at byte 11"),
    ({"train.parquet": "nothing of the kind"}, {}, "train.parquet: not a readable parquet file"),
    # quotes and fields of CSV
    *(({"train.csv": text}, {}, f"dataset.path=FOLDER/train.csv, line {line}: the field '\"") for text, line in [
        (f'label,text\npos,good\npos,"fine film\n{FILMS}', 3),
        (f'label,text\npos,good\npos,"fine film\n{FILMS}pos,"great film\n{FILMS}', 3),
        (f'label,text\npos,"a\nb"\npos,"fine" film\n{FILMS}', 4),
        (f'label,text\n{FILMS}pos,"two\nlines","x\n', 63),
        ('label,text\npos,"fine"  \n', 2),
        ('label,text\npos,"He said \\"no\\" twice"\n', 2),
        ('label,text\r\npos,"a\r\nb"\r\n"pos,x\r\n', 4),
        ('label,text\rpos,"a\rb"\r"pos,x\r', 4),
        ('label,"text\npos,a\n', 1),
    ]),
    ({"train.csv": "text,label\na,b\na,b,c\n"}, {}, "dataset.path=FOLDER/train.csv, line 3 has 3 fields, its header 2"),
    ({"train.csv": 'text,label\n"a\nb",c\n\na\n'}, {}, "train.csv, line 5 has 1 fields, its header 2"),
    ({"train.csv": "text,label\n   \na,b\n"}, {}, "train.csv, line 2 has 1 fields, its header 2"),
    ({"train.tsv": "text\tlabel\na\tb\tc\n"}, {}, "train.tsv, line 2 has 3 fields, its header 2"),
    ({"train.tsv": "text\tlabel\nx\ry\tz\n"}, {}, "train.tsv, line 2 has 1 fields, its header 2"),
    ({"train.csv": "\ufefftext,text\na,b\n"}, {}, "FOLDER/train.csv: its header has the column text 2 times"),
    # JSON
    *(({"train.jsonl": text}, {}, f"dataset.path=FOLDER/train.jsonl: not a readable json file ( ... {problem}")
      for text, problem in [
        ('{"text": "a"}\n{"text": "b"\n', "line 2: Expecting ',' delimiter"),
        ('{"text": "a"}\n["b"]\n', "line 2 is not an object"),
        ('{"text": "a"}\n{"text": "\\ud800"}\n', "line 2 contains an unpaired surrogate"),
        ('[{"text": "a"}, 3]', "row 1 is not an object"),
        ('[{"text": "a"},\n{"text" 3}]', "line 2: Expecting ':' delimiter"),
        ('{\n "text": ["a"]\n}', "one object per line, or one list of objects, is needed"),
        ("[" * 100_000, "nested too deeply"),
    ]),
    # texts
    ({"train.jsonl": [{"text": 3, "label": 0}]}, {"labels": ["a", "b"]},
     "dataset.text_columns=text: dataset.path=FOLDER/train.jsonl, line 1 holds int, not text"),
    ({"train.jsonl": [{"text": ["a"], "label": number} for number in (0, 1)]}, {}, "line 1 holds list, not text"),
    # labels
    (TABLE, {"labels": ["only"]}, "dataset.labels=['only']; at least two different classes are needed"),
    (TABLE, {"labels": ["a", "a"]}, "dataset.labels=['a', 'a']; at least two different classes are needed"),
    (TABLE, {"label_column": "number", "labels": ["no", "yes"]},
     "dataset.label_column=number: dataset.path=FOLDER/train.csv, line 4 has the label '2'; allowed are 0 to 1 or no, "
     "yes"),
    (TABLE, {"label_column": "number"},
     "validation.csv, line 2 has the label '12'; allowed are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."),
    (TABLE, {"label_column": "text", "problem": SequenceProblem.regression},
     "has the label 'a cat 0'; a finite number is needed"),
    (make_labels("0.25", "0.5"), {}, "holds values such as 0.25, not classes; use dataset.problem=regression"),
    (make_labels(0, 1, name="train.jsonl") | make_labels(0, 1, -1, name="validation.jsonl"), {},
     "dataset.path=FOLDER/validation.jsonl, line 3 has the label -1; allowed are 0, 1"),
    (make_labels(None, None, name="train.jsonl"), {}, "has the classes none; at least two"),
    (make_labels("entailment", "neutral", "entailed"), {"labels": ["entailment", "neutral"]},
     "'entailed'; allowed are entailment, neutral (did you mean 'entailment'?)"),
    (make_labels("pos", "0", "neg"), {"labels": ["neg", "pos"]},
     "has the label '0'; allowed are neg, pos; numbers are indices in"),
    (make_labels("1", "neg", "pos"), {"labels": ["neg", "pos"]},
     "has the label '1'; allowed are neg, pos; numbers are"),
    (make_labels("pos", "neg") | make_labels("0", "1", name="validation.csv"), {},
     "dataset.path=FOLDER/validation.csv, line 2 has the label '0'; ... neg, pos"),
    (make_labels("pos", "neg") | make_labels("0", "1", name="validation.csv"), {"labels": ["pos", "neg"]},
     "validation.csv, line 2 has the label '0'"),
    *((make_columns(text=["some"] * 3, label=labels), {},
       "dataset.label_column=label: dataset.path=FOLDER/train.parquet, row 1 has the label")
      for labels in ([1, None, 0], [1.0, float("nan"), 0.0], ["a", None, "b"], ["a", "", "b"])),
    (make_columns(text=["a", "b"], label=[b"ab", b"cd"]), {}, "a name or a number is needed, not bytes such as b'ab'"),
    (make_labels("a", "b", name="train-00000-of-00002.csv") | {"train-00001-of-00002.csv": "text,label\nx,a\ny,\n"}, {},
     "FOLDER/train-00001-of-00002.csv, line 3 has the label ''"),
    *((make_labels("x", f'"{cell}"', "y"), MULTI, ", line 3 has the labels ... , which is not a list; write ['a', 'b']")
      for cell in ("['joy' 'fear']", "[joy, fear]", "[['joy']]", "[1 2]", "['joy']['fear']", "[None]")),
]  # fmt: skip

WORDS = [{"tokens": ["they", "stop"], "ner_tags": ["B-PER", "O"]}, {"tokens": ["cat"], "ner_tags": ["I-PER"]}]


def make_tags(tokens: Any, tags: Any) -> Files:
    """Return good rows of words, and a wrong one in line 3 of the training split."""
    return {"train.jsonl": [*WORDS, {"tokens": tokens, "ner_tags": tags}], "validation.jsonl": WORDS}


TAGS: list[Case] = [
    (make_tags(["a", "cat"], ["O"]), {},
     "dataset.tag_column=ner_tags: dataset.path=FOLDER/train.jsonl, line 3 has 2 words but 1 tags"),
    (make_tags(["a"], ["B-PRE"]), {"labels": NAMES},
     "line 3 has the tag 'B-PRE'; allowed are O, B-PER, I-PER (did you mean 'B-PER'?)"),
    (make_tags(["a"], ["3"]), {"labels": NAMES}, "has the tag '3'; allowed are O, B-PER, I-PER"),
    (make_tags(["a"], [None]), {}, "line 3 has the tag None; allowed are"),
    (make_tags("a cat", ["O"]), {}, "dataset.token_column=tokens: ... , line 3 holds str, not a list"),
    (make_tags([None], ["O"]), {}, "line 3 holds the word None, which is not text"),
    ({"train.jsonl": WORDS}, {"token_column": "words"}, "dataset.token_column=words: ... the columns tokens, ner_tags"),
    ({"train.jsonl": WORDS}, {"tag_column": "ner_tag"}, "the columns tokens, ner_tags (did you mean 'ner_tags'?)"),
    ({"train.jsonl": WORDS}, {"labelled_pieces": "all", "labels": ["O", "B-PER", "I-PER", "B-LOC"]},
     "dataset.labelled_pieces=all: the tag B-LOC exists, but I-LOC does not"),
    ({"train.conll": "# a comment\nEU\tB-ORG\n\n-DOCSTART-\tO\n\nLondon\tB-LOC\ncalls\tO\n"},
     {"labels": ["O", "B-ORG"]},
     "dataset.tag_column=ner_tags: dataset.path=FOLDER/train.conll, line 6 has the tag 'B-LOC'"),
    ({"train.conll": "EU\nrejects\n"}, {}, "dataset.tag_column=ner_tags: ... train.conll has the columns tokens"),
    ({"train.conll": "O it\nB-MISC 101.5\n\nO a\n"}, {},
     "such as 101.5, not classes; tags are the last column of .conll files"),
    *(({"train.conll": text}, {}, f"dataset.path=FOLDER/train.conll, line 2 {problem}") for text, problem in [
        ("a\tO\nb O\n", "is a word without a tag: b O"),
        ("a O\nb\tO\n", "is a word without a tag: b\tO"),
        ("a X O\nNew York B-LOC O\n", "has 4 fields, line 1 has 3 with blanks between them"),
        ("a\tO\n\tO\n", "has an empty field; a word and its tag need at least one character"),
        ("a\tX\tO\nb\tO\t\n", "has 2 fields, line 1 has 3 with tabs between them"),
        ("a X O\nb X\tY O\n", "has 3 fields, line 1 has 3 with blanks between them"),
    ]),
    ({"en_ewt-ud-train.conllu": TREEBANK, "en_gum-ud-train.conllu": TREEBANK}, {"tag_column": "upos"},
     "en_ewt-ud-train.conllu, en_gum-ud-train.conllu all match the split train; cho"),
    ({"en-ud-train.conllu": "1 cats cat NOUN\n"}, {"tag_column": "upos"},
     "line 1 has 1 fields with tabs between them, CoNLL-U has 10"),
]  # fmt: skip


def make_questions(**changes: Any) -> Files:
    """Return columns of a question, changed in its first row, and of a second one."""
    row = {"id": "q0", "question": "who?", "context": "Don't stop the cat", "answers": make_answer("cat", 15)}
    return {"train.jsonl": [row | changes, row | {"id": "q1"}]}


def make_answer(text: str, start: int) -> dict[str, list[Any]]:
    return {"text": [text], "answer_start": [start]}


QUESTIONS: list[Case] = [
    (make_questions(answers=make_answer("dog", 3)), {},
     "dataset.answers_column=answers: dataset.path=FOLDER/train.jsonl, line 1 has the answer 'dog', but at character 3 "
     "of ... there is \"'t \""),
    (make_questions(answers={"text": ["cat"], "answer_start": []}), {}, "has 1 answers but 0 positions"),
    (make_questions(answers=make_answer("", 0)), {},
     "has the answer '' at 0; a text and the position of its first character"),
    (make_questions(answers="cat"), {}, "holds str, not {text: [...], answer_start: [...]}"),
    (make_questions(answers={"text": [], "answer_start": []}), {"unanswerable": False},
     "dataset.unanswerable=false: ... , line 1 has no answer; if questions may have no answer, set it to true"),
    (make_questions(question=7), {}, "dataset.question_column=question: ... , line 1 holds int, not text"),
    (make_questions(), {"context_column": "contxt"}, "dataset.context_column=contxt: ... did you mean 'context'?"),
    (make_questions(), {"stride": 18},
     "dataset.stride=18: windows of dataset.sequence_length=32 hold 17 context tokens"),
    (make_questions(id="q1"), {}, "dataset.id_column=id: dataset.path=FOLDER/train.jsonl has 'q1' twice"),
    (make_questions(id=None), {}, "dataset.id_column=id: ... , line 1 has no id; null uses row numbers as ids"),
    (make_questions(context="a cat" * 200_001), {}, "line 1 has 1,000,005 characters, more than 1,000,000; shorten it"),
]  # fmt: skip


def make_endings(**changes: Any) -> Files:
    row = {"sent1": "they said", "sent2": "a cat", "label": 0} | {f"ending{choice}": "now!" for choice in range(4)}
    return {"train.jsonl": [row | changes, row | {"label": 1}]}


CHOICES: list[Case] = [
    (make_endings(label=4), {}, "dataset.label_column=label: ... , line 1 has the label 4; allowed are 0, 1, 2, 3"),
    (make_endings(ending1=3), {}, "dataset.ending_columns=ending1: ... , line 1 holds int, not text"),
    (
        make_endings(),
        {"ending_columns": ["ending0", "endng1"]},
        "dataset.ending_columns=endng1: ... did you mean 'ending1'?",
    ),
]

KINDS: dict[str, tuple[type, dict[str, Any], list[Case]]] = {
    "labels": (LabelledConfig, {"sequence_length": 16}, LABELS),
    "tags": (TaggingConfig, {"sequence_length": 32}, TAGS),
    "questions": (QuestionConfig, {"sequence_length": 32, "stride": 5, "max_question_length": 12, "unanswerable": True},
                  QUESTIONS),
    "choices": (ChoiceConfig, {"sequence_length": 32}, CHOICES),
}  # fmt: skip


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("words")
    tokenizer("bert").save_pretrained(folder)
    return str(folder)


def read_message(config: Any, words: str, cache: Path) -> str:
    with pytest.raises(UserError) as raised:
        load_labelled_data(config, TokenizerConfig(path=words), 0)
    assert "\n" not in str(raised.value)
    assert not list(cache.glob("*.partial"))
    return str(raised.value)


@pytest.mark.parametrize(
    ("kind", "files", "changes", "message"),
    [
        pytest.param(kind, *case, id=f"{kind}: {case[2][:60]}")
        for kind, (_, _, cases) in KINDS.items()
        for case in cases
    ],
)
def test_an_unreadable_table_is_a_one_line_error(
    kind: str, files: Files, changes: dict[str, Any], message: str, words: str, tmp_path: Path
) -> None:
    folder, cache = tmp_path / "tables", tmp_path / "cache"
    write_files(folder, files)
    settings_class, settings, _ = KINDS[kind]
    local = {"name": "table", "source": Source.local, "path": str(folder), "cache_dir": str(cache)}
    line = read_message(settings_class(**{**local, **settings, **insert_folder(changes, folder)}), words, cache)
    assert has_parts(line, insert_folder(message, folder)), line
    assert line.startswith("dataset.")


def test_an_unreachable_hub_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LabelledConfig(
        name="t",
        source=Source.hub,
        hub=HubTable("who/nothing", "cola"),
        cache_dir=str(tmp_path),
        sequence_length=16,
    )
    assert "dataset.hub=who/nothing/cola: " in read_message(config, "", tmp_path)

    def refuse_connection(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.urlopen", refuse_connection)
    assert "cannot be reached (no route)" in read_message(config, "", tmp_path)


def test_a_missing_split_of_a_hub_set_is_a_one_line_error(tmp_path: Path) -> None:
    write_files(tmp_path / "hub", {"train.csv": TABLE["train.csv"], "test.csv": TABLE["validation.csv"]})
    (tmp_path / "hub" / "validation.csv").unlink()
    config = LabelledConfig(
        name="t", source=Source.hub, hub=HubTable(str(tmp_path / "hub")), evaluation_splits=["tests"],
        cache_dir=str(tmp_path / "cache"), sequence_length=16,
    )  # fmt: skip
    assert read_message(config, "", tmp_path) == (
        "dataset.evaluation_splits=tests: the data set has only train, test (did you mean 'test'?)"
    )
