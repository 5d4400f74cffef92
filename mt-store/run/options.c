/* options.c: the table of mt-run's own options, from which come --help and --options. The script parses them. */
#include <stdlib.h>

#include "start.h"

/* A default, which the script gives the variable of that name */
#define WORD(text) \
	&(const char *) { text }
#define NUMBER(n) \
	&(uint64_t) { n }

static const struct mt_opt options[] = {
	{"args", OPT_STR, NULL, "FILE", "read options from FILE, one a line, # comments; those of the command line win"},
	{"model", OPT_STR, NULL, "DIR|config.json", "model to train"},
	{"out", OPT_STR, NULL, "DIR", "directory of what comes of it"},
	{"data", OPT_LIST, NULL, "FILE[:WEIGHT]",
		"records; with --bytes, --u16 or --u32 (and --eos, --block) a flat file, see mt-feed; - is stdin; a directory "
		"stands for its files; the files follow one another, or are mixed (--mix, or a weight is given)"},
	{"epochs", OPT_U64, NULL, "N", "passes over the data; without --steps, they are counted first and give --steps"},
	{"shuffle", OPT_U64, NULL, "SEED",
		"random order of documents in each epoch (default, with --seed, if all data are files)"},
	{"no-shuffle", OPT_FLAG, NULL, NULL, "the files' order; a resumed training keeps the order that it began with"},
	{"dtype", OPT_CHOICE, WORD("bf16"), "bf16|fp32", "data type of the weights"},
	{"grad", OPT_CHOICE, WORD("fp32"), "fp32|bf16|none", "data type of the gradients"},
	{"state", OPT_CHOICE, WORD("fp32"), "fp32|bf16|int8",
		"data type of AdamW's m and v: bf16 saves 4 bytes a parameter, int8 5.9"},
	{"optim", OPT_CHOICE, WORD("adamw"), "adamw|lion|sgd",
		"rule of the update: lion and sgd (with momentum) keep no v"},
	{"train", OPT_STR, NULL, "PATTERN[,...]",
		"train only tensors with such names (* ? [abc]), and let the others stay as they are; see mt-store(1)"},
	{"freeze", OPT_STR, NULL, "PATTERN[,...]", "do not train tensors with such names"},
	{"mtp", OPT_DOUBLE, NULL, "X",
		"train the model's block of multi-token prediction, too, whose loss has weight X; see mt-store(1)"},
	{"update", OPT_CHOICE, WORD("late"), "late|early",
		"late: units are updated after a step's commit; early: with --clip 0, each as soon as its gradient is "
		"complete; see mt-optim(1)"},
	{"tier", OPT_STR, NULL, "[DIR[,DIR...]]",
		"lo, m and v of the last units in files below these directories, on NVMe; without DIR: OUT/tier, where a "
		"checkpoint is made of links to them"},
	{"tier-memory", OPT_SIZE, NULL, "BYTES",
		"lo, m and v that stay in memory (default: what leaves a tenth of the RAM free)", .with = "--tier"},
	{"tier-tile", OPT_SIZE, NULL, "N", "elements of a tile, a multiple of 64K (default: 16M)", .with = "--tier"},
	{"copy-tier", OPT_FLAG, NULL, NULL, "checkpoints have copies in place of links, see mt-ckpt(1)", .with = "--tier"},
	{"seed", OPT_U64, NUMBER(1), "N", "of random weights and of --shuffle"},
	{"device", OPT_STR, WORD("cpu"), "cpu|chaos:SEED|cuda[:N]",
		"of mt-stream; several GPUs, with an mt-stream each: cuda:0,cuda:2, or cuda:all"},
	{"compute", OPT_CHOICE, NULL, "fp8|bf16|fp32",
		"GEMM operands: fp8: e4m3, of bf16 weights; on the device cpu bf16 or fp32 (default: bf16, if weights are bf16 "
		"and the CPU has AMX, or is AMD's with AVX512-BF16; else fp32)"},
	{"micro", OPT_STR, NULL, "SEQS|auto",
		"rows of a micro-batch; auto: those with the shortest predicted step (default with a GPU, on one node; else "
		"all rows of a step)"},
	{"streams", OPT_U64, NULL, "N", "number of mt-streams, at most 64 (default: 1, or one for each GPU of --device)"},
	{"threads", OPT_U64, NULL, "N", "threads of each mt-stream (default: the cores, shared)"},
	{"numa", OPT_CHOICE, WORD("none"), "auto|none",
		"auto: on several NUMA nodes, interleave the store, and run an mt-stream on the cores of each node, or of the "
		"GPU's"},
	{"keep", OPT_U64, NUMBER(2), "K", "number of checkpoints to keep"},
	{"keep-best", OPT_FLAG, NULL, NULL, "keep also the one with the lowest eval loss"},
	{"best", OPT_FLAG, NULL, NULL, "the same, and at the end that one becomes OUT/model"},
	{"resume", OPT_FLAG, NULL, NULL, "continue from the newest complete checkpoint in OUT"},
	{"new-record", OPT_FLAG, NULL, NULL, "continue on another kind of machine or device, where bits differ",
		.with = "--resume"},
	{"drop-unused", OPT_FLAG, NULL, NULL,
		"leave out tensors of MODEL that its class does not train, such as layers of multi-token prediction; without "
		"it, they are carried along as they are"},
	{"restart", OPT_FLAG, NULL, NULL, "start a stage, or mt-step, again when it is killed"},
	{"nodes", OPT_FLAG, NULL, NULL,
		"one of several nodes of a run: mpirun -n N mt-run --nodes ..., the same on each node; for checkpoints, OUT "
		"must be on a file system that all of them see"},
	{"top", OPT_U64, NULL, "K",
		"with --loss kd: tokens of a teacher at each target (default: as the first record has)"},
	{"run", OPT_STR, NULL, "NAME", "name of the run in shared memory (default: run-PID)"},
	{"sample", OPT_STR, NULL, "FILE",
		"mt-sample continues the prompts in FILE after the last step, in OUT/samples.jsonl; with --bytes, or for a "
		"model with a tokenizer, a prompt or chat a line; else records"},
	{"sample-every", OPT_U64, NULL, "N", "do it also every N steps, beside the training"},
	{"sample-tokens", OPT_U64, NULL, "N", "maximum new tokens of each (default: 128)"},
	{"sample-temperature", OPT_DOUBLE, NULL, "X", "divide logits by X; 0: the most likely token (default: 1)"},
	{"metrics", OPT_STR, NULL, "FILE",
		"write metrics to FILE, not to OUT/metrics.jsonl; -: on stdout, also on a terminal"},
	{"quiet", OPT_FLAG, NULL, NULL, "errors and warnings only"},
	{"score", OPT_FLAG, NULL, NULL,
		"write the lines of mt-score, or records; takes its options, and --model, --data, --dtype, --device, "
		"--compute, --micro, --streams, --threads, --numa, --run, --quiet, --args"},
	{"demo", OPT_STR, NULL, "DIR", "train a small model for a minute, in DIR, and let it write a paragraph"},
	{"dry-run", OPT_FLAG, NULL, NULL,
		"check everything, print steps, memory, disk and predicted time, and start nothing"},
	{"json", OPT_FLAG, NULL, NULL, "as JSON", .with = "--dry-run"},
	{"net", OPT_DOUBLE, NULL, "GB/s",
		"on several nodes: bandwidth of the network to a node; without it, the predicted time ignores the network",
		.with = "--dry-run"},
	{0},
};

static const struct mt_program program = {
	.name = "mt-run",
	.usage = "mt-run --model DIR|config.json --data FILE --out DIR [options] [options of mt-step] > metrics\n"
			 "mt-run --score --model DIR --data FILE --seq T [--tokens|--sum] [options] > lines\n"
			 "mt-run --score --join ref|old|--top K --model DIR --data FILE --seq T [options] > records",
	.about = "Trains MODEL on FILE: checkpoints in OUT/step-*, the result in OUT/model, the metrics also in\n"
			 "OUT/metrics.jsonl. MODEL is a Hugging Face directory, or a config.json: then weights are random.\n"
			 "With --score, writes log-probabilities of the records instead (see mt-score), and trains nothing.\n"
			 "Takes the options of mt-step, too: --steps, --batch, --seq, --lr, ...; see mt-step --help.",
	.opts = options,
};

void run_options(int argc, char **argv)
{
	mt_cli(&program, argc, argv, NULL, 0);
	exit(MT_EX_USAGE);
}
