# options.sh: mt-run's own options, and those that it collects for mt-step and mt-feed, which check them
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

usage() {
	cat <<-'EOF'
	usage: mt-run --model DIR|config.json --data FILE --out DIR [options] [mt-step's options] > metrics
	       mt-run --score --model DIR --data FILE --seq T [--tokens|--sum] [options] > lines
	       mt-run --score --join ref|old --model DIR --data FILE --seq T [options] > records

	Trains MODEL on FILE: checkpoints in OUT/step-*, the result in OUT/model, the metrics also in OUT/metrics.jsonl.
	MODEL is a Hugging Face directory, or a config.json: then weights are random.
	With --score, writes log-probabilities of the records instead (see mt-score), and trains nothing.

	options, besides those of mt-step (--steps, --batch, --seq, --lr, ...; see mt-step --help):
	  --args FILE                read options from FILE, one a line, # comments; those of the command line win
	  --model DIR|config.json    model to train
	  --out DIR                  directory of what comes of it
	  --data FILE[:WEIGHT]       records; with --bytes, --u16 or --u32 (and --eos, --block) a flat file, see mt-feed;
	                             - is stdin; a directory stands for its files; may be repeated: the files follow one
	                             another, or are mixed (--mix, or a weight is given)
	  --epochs N                 passes over the data; without --steps, they are counted first and give --steps
	  --shuffle SEED             random order of documents in each epoch (default, with --seed, if all data are files)
	  --no-shuffle               the files' order; a resumed training keeps the order that it began with
	  --dtype bf16|fp32          data type of the weights (default: bf16)
	  --grad fp32|bf16|none      data type of the gradients (default: fp32)
	  --state fp32|bf16|int8     data type of AdamW's m and v: bf16 saves 4 bytes a parameter, int8 5.9 (default: fp32)
	  --optim adamw|lion|sgd     rule of the update: lion and sgd (with momentum) keep no v (default: adamw)
	  --update early|late        late: units are updated after a step's commit (default); early: with --clip 0, each as
	                             soon as its gradient is complete; see mt-optim(1)
	  --tier [DIR[,DIR...]]      lo, m and v of the last units in files below these directories, on NVMe; without DIR:
	                             OUT/tier, where a checkpoint is made of links to them
	  --tier-memory BYTES        with --tier: lo, m and v that stay in memory (default: what leaves a tenth of the RAM
	                             free)
	  --tier-tile N              with --tier: elements of a tile, a multiple of 64K (default: 16M)
	  --copy-tier                with --tier: checkpoints have copies in place of links, see mt-ckpt(1)
	  --seed N                   of random weights and of --shuffle (default: 1)
	  --device DEV               of mt-stream (default: cpu); several GPUs, with an mt-stream each: cuda:0,cuda:2, or
	                             cuda:all
	  --compute bf16|fp32        GEMM operands on the device cpu (default: bf16, if weights are bf16 and the CPU has
	                             AMX, or is AMD's with AVX512-BF16; else fp32)
	  --micro SEQS|auto          rows of a micro-batch; auto: those with the shortest predicted step (default with a
	                             GPU, on one node; else all rows of a step)
	  --streams N                number of mt-streams, at most 64 (default: 1, or one for each GPU of --device)
	  --threads N                threads of each mt-stream (default: the cores, shared)
	  --numa auto|none           auto: on several NUMA nodes, interleave the store, and run an mt-stream on the cores
	                             of each node, or of the GPU's (default: none)
	  --keep K                   number of checkpoints to keep (default: 2)
	  --keep-best                keep also the one with the lowest eval loss
	  --best                     the same, and at the end that one becomes OUT/model
	  --resume                   continue from the newest checkpoint in OUT
	  --new-record               with --resume: continue on another kind of machine or device, where bits differ
	  --drop-unused              leave out tensors of MODEL that its class does not train, such as layers of
	                             multi-token prediction; without it, they are carried along as they are
	  --restart                  start a stage again when it is killed
	  --nodes                    one of several nodes of a run: mpirun -n N mt-run --nodes ..., the same on each node;
	                             for checkpoints, OUT must be on a file system that all of them see
	  --run NAME                 name of the run in shared memory (default: run-PID)
	  --sample FILE              mt-sample continues the prompts in FILE after the last step, in OUT/samples.jsonl;
	                             with --bytes, or for a model with a tokenizer, a prompt or chat a line; else records
	  --sample-every N           do it also every N steps, beside the training
	  --sample-tokens N          maximum new tokens of each (default: 128)
	  --sample-temperature X     divide logits by X; 0: the most likely token (default: 1)
	  --metrics FILE             write metrics to FILE, not to OUT/metrics.jsonl; -: on stdout, also on a terminal
	  --quiet                    errors and warnings only
	  --score                    write the lines of mt-score, or records; takes its options, and --model, --data,
	                             --dtype, --device, --compute, --micro, --streams, --threads, --numa, --run, --quiet,
	                             --args
	  --demo DIR                 train a small model for a minute, in DIR, and let it write a paragraph
	  --dry-run                  check everything, print steps, memory, disk and predicted time, and start nothing
	  --json                     with --dry-run: as JSON
	  --net GB/s                 with --dry-run --nodes: bandwidth of the network to a node; without it, the predicted
	                             time ignores the network
	  --help, --version
	EOF
}

MOST_STREAMS=64                                 # of a run, on all of its nodes
model='' data='' out='' dtype=bf16 grad=fp32 state=fp32 optim=adamw seed=1 device=cpu compute='' streams=1
threads='' numa=none keep=2 run=run-$$
batch='' micro='' seq='' eval='' steps='' until='' epochs='' order='' resume='' record=''
update=late clip='' tier_given='' tier='' tier_memory='' tier_tile='' copy_tier='' tier_rate='' tier_free=''
chosen=''                                       # set: micro is not the user's choice
restart='' drop_unused='' load_options='' new_input='' best='' export_best='' nodes='' net=''
ckpt_every='' eval_every='' stop_after='' max_skipped=20 pack=docs loss=''    # mt-step's, with its defaults
sample='' sample_every='' sample_options='' join=''
metrics='' show='' quiet='' dry='' json=''      # show: metrics on stdout also where that is a terminal
feed_options='' check_options='' step_options='' given=' ' count=''

# The options are those of --help, here and of mt-step, and these of mt-feed. After one with a value there is a blank
# and the value's name, after a flag there are more blanks. What mt-run itself asks mt-step is not for users.
read_options() {
	driver=mt-step
	[ -z "$score" ] || driver=mt-score
	lines=$(usage
		$driver --help | sed '/^  --check /d; /^  --count /d; /^  --config /d; /^  --own-metrics /d; /^  --micro /d'
		printf '  %s\n' '--eos ID' '--block N' '--bytes  ' '--u16  ' '--u32  ' '--mix  ')
	[ -z "$score" ] || lines=$(printf '%s\n' "$lines" | grep -E "^  --($SCORE_OPTIONS) ")
	with_value=$(printf '%s\n' "$lines" | sed -n 's/^  \(--[a-z0-9-]*\) [^ ].*/\1/p')
	flags=$(printf '%s\n' "$lines" | sed -n 's/^  \(--[a-z0-9-]*\)  .*/\1/p')
}

is_in() { case $nl$2$nl in *"$nl$1$nl"*) ;; *) return 1 ;; esac; }  # OPTION LIST

unknown() { # OPTION: ends mt-run, with those that begin with the same letters
	[ -z "$score" ] || die 64 "--score does not take $1$of_file; see --help"
	like='' begin=${1%"${1#????}"}
	for option in $with_value $flags; do
		case $option in "$begin"*) like="$like $option" ;; esac
	done
	die 64 "unknown option $1$of_file;${like:+ there is${like};} see --help"
}

set_option() { # OPTION VALUE
	if is_in "$1" "$flags"; then die 64 "$1 takes no value$of_file"; fi
	is_in "$1" "$with_value" || unknown "$1"
	case $1$given in --data* | --ring*) ;; *" $1 "*) die 64 "$1 is given twice$of_file" ;; esac
	given="$given$1 "
	case $1=$2 in                               # a name, and no option of mkdir, find, mt-feed, ...
	--data=- | --metrics=-) ;;
	--model=-* | --data=-* | --out=-* | --eval=-* | --sample=-* | --metrics=-*) set -- "$1" "./$2" ;;
	esac
	[ "$1=$2" != --metrics=- ] || { show=1; return; }
	name=${1#--}
	while case $name in *-*) ;; *) false ;; esac; do name=${name%%-*}_${name#*-}; done
	[ "$1" = --data ] || eval "$name=\$2"       # each but --data has a variable of its name
	case $1 in
	--demo) exec sh "$parts/demo" "$2" ;;
	--args)
		[ -n "$2" ] || die 64 "--args: an empty name"
		return ;;                               # find_args has read it
	--model | --out | --dtype | --grad | --state | --optim | --update | --seed | --device | --compute | --streams | \
		--threads | --numa | --keep | --run | --net | --sample | --tier-memory | --tier-tile) return ;;
	--tier) tier_given=1; return ;;
	--input) new_input=1 ;;
	esac
	case $2 in *"$nl"*) die 64 "$1: a line break in '$2'" ;; esac
	case $1 in
	--data) add_data "$2" ;;
	--sample-every) ;;                          # (not for mt-step)
	--sample-tokens) sample_options=$sample_options--max-tokens=$2$nl ;;
	--sample-temperature) sample_options=$sample_options--temperature=$2$nl ;;
	--shuffle) set_order "$2" ;;
	--epochs | --eos | --block) feed_options=$feed_options$1=$2$nl ;;
	--micro) [ "$2" = auto ] || step_options=$step_options$1=$2$nl ;;
	*) step_options=$step_options$1=$2$nl ;;
	esac
}

set_flag() { # FLAG
	case $1 in
	--help) print "$(usage)"; exit 0 ;;
	--version) print "$(mt-step --version | sed 's/mt-step/mt-run/')"; exit 0 ;;
	--new-record) record=$1 ;;
	--drop-unused) drop_unused=$1 load_options=$load_options$1$nl ;;
	--no-shuffle) set_order none ;;
	--keep-best) best=1 ;;
	--best) best=1 export_best=1 ;;
	--dry-run) dry=1 ;;
	--copy-tier) copy_tier=1 ;;
	--score) ;;                                 # mt-run has seen it
	--resume | --restart | --quiet | --json | --nodes) eval "${1#--}=1" ;;
	--bytes | --u16 | --u32 | --mix) feed_options=$feed_options$1$nl ;;
	--allow-image-tokens) check_options=$1$nl step_options=$step_options$1$nl ;;
	*) step_options=$step_options$1$nl ;;
	esac
}

set_order() { # SEED, or none
	[ -z "$order" ] || die 64 "only one of --shuffle and --no-shuffle"
	order=$1
}

add_data() { # FILE
	case $1 in '') die 64 "--data: an empty name" ;; -) set -- /dev/stdin ;; esac
	case $1$nl$data in /dev/stdin*"$nl/dev/stdin$nl"* | "/dev/stdin$nl/dev/stdin$nl"*)
		die 64 "--data: stdin can be read only once" ;;
	esac
	data=$data$1$nl
}

parse() { # ARGS...
	read_options
	for option in $file_options; do
		of_file=" (line ${option%% *} of $args)"
		parse_words "${option#* }"
	done
	of_file=''
	parse_words "$@"
}

parse_words() {
	while [ $# -gt 0 ]; do
		case $1 in
		-h) set_flag --help ;;
		--*=*) set_option "${1%%=*}" "${1#*=}" ;;
		--*)
			if is_in "$1" "$flags"; then set_flag "$1"
			elif ! is_in "$1" "$with_value"; then unknown "$1"
			elif [ "$1" = --tier ] && case ${2---} in --*) ;; *) false ;; esac; then set_option "$1" ''
			elif [ $# = 1 ]; then die 64 "$1 needs a value$of_file"
			else
				set_option "$1" "$2"
				shift
			fi ;;
		*) die 64 "unexpected operand '$1'; see --help" ;;
		esac
		shift
	done
}

# ---- --args FILE

args='' file_options=''                         # FILE; its options, "LINE --name=value" each
of_file=''                                      # " (line N of FILE)" while an option of FILE is looked at
# On the command line, one of a line wins over all of them in FILE
alternatives='--shuffle --no-shuffle
--bytes --u16 --u32
--eos --block
--tokens --sum --join'

# awk: the words of each line, without its comment, as by a shell that expands nothing but ~/. The word behind an option
# is its value; where the line has no other option and nothing quoted, all words are. A line that begins with mt-run is
# a command of OUT/command, and the last one counts.
# shellcheck disable=SC2016                     # awk's $
args_reader='
function fail(code, text) {
	n = 0
	failure = code " line " NR ": " text
	exit
}
function split_line(line,    i, c, quote, in_word) {
	count = quoted = 0
	end = length(line)
	for (i = 1; i <= length(line); i++) {
		c = substr(line, i, 1)
		if (quote == "" && c ~ /[ \t]/) {
			in_word = 0
			continue
		}
		if (c == "#" && !in_word) {
			end = i - 1
			break
		}
		if (c == "\\" && quote == "" && i == length(line)) break        # the line goes on
		if (!in_word) {
			word[++count] = ""
			begin[count] = i
		}
		if (c == quote) c = quote = ""
		else if (quote == "" && c ~ /["\047]/) {
			quote = c
			c = ""
			quoted = 1
		} else if (c == "\\" && (quote == "" || (quote == "\"" && substr(line, i + 1, 1) ~ /["\\$`]/))) {
			c = substr(line, ++i, 1)
			quoted = 1
		} else if (c == "~" && !in_word && substr(line, i + 1, 1) == "/") c = ENVIRON["HOME"]
		in_word = 1
		word[count] = word[count] c
	}
	if (quote != "") fail(64, "a quote is not closed")
}
function value_of_rest(line) {
	line = substr(line, begin[2], end - begin[2] + 1)
	sub(/[ \t]+$/, "", line)
	return (line ~ /^~\// ? ENVIRON["HOME"] substr(line, 2) : line)
}
function add(option) {
	if (option ~ /^--args(=|$)/) fail(64, "--args is for the command line alone")
	list[++n] = NR " " option
}
/\r$/ { fail(65, "ends with CR LF; lines end with LF alone here") }
/[\001-\010\013-\037\177]/ { fail(65, "has a NUL or another control character") }
{
	split_line($0)
	first = 1
	if (count && word[1] ~ /^(.*\/)?mt-run$/) {
		first = 2
		n = 0
	}
	options = 0
	for (i = first; i <= count; i++) options += word[i] ~ /^--/
	if (first == 1 && count > 2 && options == 1 && !quoted && word[1] ~ /^--[^=]*$/) {
		word[2] = value_of_rest($0)
		count = 2
	}
	for (i = first; i <= count; i++) {
		if (word[i] !~ /^--/) fail(64, "unexpected operand \047" word[i] "\047; a value with blanks wants quotes")
		if (word[i] ~ /=/ || i == count || word[i + 1] ~ /^--/) add(word[i])
		else {
			add(word[i] "=" word[i + 1])
			i++
		}
	}
}
END {
	if (failure) print "failed " failure
	for (i = 1; i <= n; i++) print list[i]
}'

find_args() { # ARGS...: sets args and file_options, without those that ARGS have
	taken='' last=''
	for arg; do
		[ "$last" != --args ] || args=$arg
		last=$arg
		case $arg in --args=*) args=${arg#*=} ;; esac
		for group in ${arg%%=*}$nl$alternatives; do
			case " $group " in *" ${arg%%=*} "*) taken="$taken $group " ;; esac
		done
	done
	[ -n "$args" ] || return 0
	[ -e "$args" ] || die 66 "--args: $args: no such file"
	[ ! -d "$args" ] || die 64 "--args: $args: is a directory"
	[ -r "$args" ] || die 77 "--args: $args: no permission to read it"
	in_file=$(LC_ALL=C tr '\000' '\001' <"$args" | LC_ALL=C awk "$args_reader")
	case $in_file in failed*)
		in_file=${in_file#failed }
		die "${in_file%% *}" "--args: $args: ${in_file#* }" ;;
	esac
	for option in $in_file; do
		name=${option#* } name=${name%%=*}
		case $taken in *" $name "*) continue ;; esac
		[ "$name" != --nodes ] || die 64 "--args: $args: line ${option%% *}: --nodes is for the command line alone"
		file_options=$file_options$option$nl
	done
}

# The options of FILE and those of the command line: what OUT/command has
whole_command() { # ARGS...
	printf mt-run
	for option in $file_options; do quoted "${option#* }"; done
	while [ $# -gt 0 ]; do
		case $1 in
		--args) [ $# = 1 ] || shift ;;
		--args=*) ;;
		*) quoted "$1" ;;
		esac
		shift
	done
}
