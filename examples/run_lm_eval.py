"""lm-eval-harness on a model of this package: its own command line, once the package has registered its models.

    python examples/run_lm_eval.py run --model hf --model_args pretrained=outputs/my_run/model,max_length=512 \
        --tasks python_docs --include_path examples/lm_eval_tasks --device cpu

Needs the extra `companions`. `max_length` is how many tokens a window has, in which each sees all before it; the
harness' own default, 2,048, is more than small models were trained with. `python_docs` reads the held-out documents of
the embedded corpus and needs no network; the harness' own tasks (`--tasks wikitext`) fetch their data from the hub.
"""

from adadepth.models.auto import register_auto_classes

if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    register_auto_classes()
    cli_evaluate()
