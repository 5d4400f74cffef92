# checks.sh: all that can be wrong is found here, before OUT is made and the model is loaded
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

number() { # NAME VALUE MOST
	case $2 in '' | *[!0-9]* | 0* | ??????????*) ;; *) [ "$2" -gt "$3" ] || return 0 ;; esac
	die 64 "--$1 wants a number, 1 to $3"
}

check_countable() {
	for file in $data; do
		can_reread "$file" || [ ! -e "$file" ] ||
			die 64 "--epochs without --steps reads the data twice, which $file does not allow: give --steps N"
	done
}

check_net() {
	if [ -z "$dry" ] || [ -z "$nodes" ]; then die 64 "--net goes with --dry-run and --nodes"; fi
	case $net in
	'' | *[!0-9.]* | *.*.* | .) ;;
	*) awk -v n="$net" 'BEGIN { exit n < 1e-6 || n > 1e6 }' && return ;;
	esac
	die 64 "--net: '$net': 1e-6 to 1e6 GB/s, the network's speed"
}

# Which step is the best, is known of steps that are evaluated, and it can be exported if it is saved
check_best() {
	[ -n "$eval" ] || die 64 "--best needs --eval FILE and --eval-every N"
	number eval-every "$eval_every" 999999999
	case $ckpt_every in
	'' | *[!0-9]* | 0* | ??????????*) ;;
	*) [ $((ckpt_every % eval_every)) != 0 ] || return 0 ;;
	esac
	die 64 "--best needs --ckpt-every N, a multiple of --eval-every $eval_every: steps that are saved are compared"
}

# FILE of FILE:WEIGHT, see mt-feed
path_of() { if [ -e "$1" ] || [ ! -e "${1%:*}" ]; then printf '%s\n' "$1"; else printf '%s\n' "${1%:*}"; fi; }

can_reread() { # FILE[:WEIGHT] or DIR[:WEIGHT]
	path=$(path_of "$1")
	[ "$1" != /dev/stdin ] && { [ -f "$path" ] || [ -d "$path" ]; }
}

is_device() { case $1 in *:*[!0-9]* | *:) return 1 ;; cpu | cuda | chaos:* | cuda:*) ;; *) return 1 ;; esac; }

check_options() {
	[ -n "$model" ] || die 64 "--model DIR or config.json is needed"
	[ -n "$data" ] || die 64 "--data FILE is needed"
	case $out in
	'') die 64 "--out DIR is needed" ;;
	*"$nl"*) die 64 "--out: a line break in '$out'" ;;
	esac
	number batch "$batch" 999999999; number seq "$seq" 999999999
	if [ -z "$steps" ] && [ -n "$epochs" ]; then check_countable; fi
	[ "$state" != none ] || die 64 "--state none: a run of weights alone cannot be trained; see mt-store(1)"
	number keep "$keep" 999999999
	case $seed in '' | *[!0-9]*) die 64 "--seed: '$seed' is not a number" ;; esac
	[ -z "$export_best" ] || check_best
	[ -z "$best" ] || [ -n "$eval" ] || die 64 "--keep-best needs --eval FILE and --eval-every N"
	[ -z "$net" ] || check_net
	check_update
	check_tier
	check_device; check_compute
	check_teacher
	choose_micro
	choose_places
}

MOST_TOP=1048576

# Tokens of the teacher, for which batches need room: as the first record has them
check_teacher() {
	if [ "$loss" != kd ]; then
		[ -z "$top" ] || die 64 "--top goes with --loss kd"
		return
	fi
	[ -n "$top" ] || top=$(mt-feed --check --loss=kd --teacher $feed_options $data <&9) || exit
	[ -n "$top" ] || die 64 "--loss kd: --top K is needed where the data is a pipe"
	number top "$top" $MOST_TOP
}

# 0, 0.0, ...
is_zero() { case $1 in *0*) case $1 in *[!0.]* | *.*.*) return 1 ;; esac ;; *) return 1 ;; esac; }

check_update() {
	case $update in
	late) return ;;
	early) ;;
	*) die 64 "--update: '$update' is not early or late" ;;
	esac
	is_zero "$clip" || die 64 "--update early needs --clip 0: clipping waits for the norm of all gradients"
	[ "$grad" != none ] || die 64 "--update early: with --grad none units are updated as their gradients come, anyway"
	[ -z "$nodes" ] || die 64 "--update early: on one machine alone"
	[ "$dtype,$grad" != fp32,bf16 ] ||
		die 64 "--update early: gradients in bf16 have no room for new weights in fp32"
}

drives=''                                       # the directories of --tier

check_tier() {
	if [ -z "$tier_given" ]; then
		[ -z "$tier_memory$tier_tile$copy_tier" ] || die 64 "--tier-memory, --tier-tile and --copy-tier need --tier"
		return
	fi
	[ -z "$nodes" ] || die 78 "--tier: on one machine alone"
	: "${tier:=$out/tier}"
	case $tier in *"$nl"*) die 64 "--tier: a line break in '$tier'" ;; esac
	drives=$(printf '%s\n' "$tier" | tr , '\n')
	case $tier_tile in
	'' | [1-9]*[KM]) ;; # (mt-store create looks at these)
	0* | *[!0-9]* | ??????????*) die 64 "--tier-tile wants a multiple of 65536" ;;
	*) [ $((tier_tile % 65536)) = 0 ] || die 64 "--tier-tile wants a multiple of 65536" ;;
	esac
	[ -n "$copy_tier" ] || check_links
	find_tier_rate
}

# A checkpoint has links to the files, so they are on its file system
check_links() {
	device_of_out=$(stat -c %d -- "$(existing "$out")")
	for drive in $drives; do
		[ "$(stat -c %d -- "$(existing "$drive")")" = "$device_of_out" ] ||
			die 78 "--tier: $drive is on another file system than $out, and links cannot go there: --copy-tier"
	done
}

# What mt-tier --bench has measured there, in GB/s: of several directories, if all have it, the sum
find_tier_rate() {
	tier_rate=$(
		for drive in $drives; do                # anybody may have put a FIFO there, or a file without an end
			rates=$drive/mt-tier-bench.json
			if [ -f "$rates" ]; then head -c 4096 "$rates" | head -n 1 | json sum; else echo; fi
		done | LC_ALL=C awk '!($1 > 0) { none = 1 } { all += $1 } END { if (!none) printf "%.6g", all / 1e9 }')
}

check_device() { # sets devices, a line for each mt-stream on a GPU, and streams, if --device names several
	number streams "$streams" $MOST_STREAMS; number threads "${threads:-1}" 4096
	devices=''
	case $device in
	cuda:all) devices=$(gpus) || exit $? ;;
	cuda:*) devices=$(printf '%s\n' "$device" | tr , '\n') ;;
	cuda) devices=$(i=0; while [ $i -lt "$streams" ]; do echo "cuda:$i"; i=$((i + 1)); done) ;;
	esac
	set -- ${devices:-"$device"}
	case $device in *, | *,,*) set -- "$@" "" ;; esac
	for one; do
		case $#,$one in 1,* | *,cuda:*) is_device "$one" ;; *) false ;; esac ||
			die 64 "--device: '$device' is not cpu, chaos:SEED, cuda[:N][,cuda:N...] or cuda:all"
	done
	[ -n "$devices" ] || return 0
	if [ "$device" = cuda ] && [ $# -gt 1 ]; then
		there=$(gpus) || exit $?
		[ "$(printf '%s\n' "$there" | wc -l)" -ge $# ] ||
			die 78 "--streams $streams, and there are fewer GPUs: --device cuda:0,cuda:0 has two mt-streams on one"
	fi
	case $given in *' --streams '*)
		[ $# = "$streams" ] ||
			die 64 "--streams $streams, and --device names $(many $# GPU): name one for each mt-stream"
	esac
	streams=$#
	number streams "$streams" $MOST_STREAMS
	if [ -n "$shares" ]; then
		[ "$(printf '%s\n' "$shares" | tr , '\n' | wc -l)" = $# ] ||
			die 64 "--shares: '$shares' is not a number for each of $(many $# GPU)"
	elif [ -z "$resume" ] && [ $# -gt 1 ]; then
		types=$(types_of "$@" | sort -u)
		case $types in *"$nl"*)
			types=$(printf '%s\n' "$types" | paste -sd ';' -)
			die 78 "GPUs of several types ($types): --shares N,N says how many micro-batches each gets of so many" ;;
		esac
	fi
}

types_of() { # DEV...: a line for each that is there
	list=$(mt-stream --gpus 2>/dev/null)
	for one; do printf '%s\n' "$list" | sed -n "s/^$one \(.*\), [0-9]* GiB\$/\1/p"; done
}

device_of() { # I: of mt-stream I
	if [ -z "$devices" ]; then printf '%s\n' "$device"; else printf '%s\n' "$devices" | sed -n "$(($1 + 1))p"; fi
}

check_compute() {
	case $compute in '' | fp8 | bf16 | fp32) ;; *) die 64 "--compute: '$compute' is not fp8, bf16 or fp32" ;; esac
}

gpus() { # a line for each: cuda:N
	list=$(mt-stream --gpus 2>&1) || die 78 "${list#mt-stream: }"
	printf '%s\n' "$list" | cut -d ' ' -f 1
}

# Where the mt-streams run, and with how many threads
choose_places() {
	cores=$(nproc 2>/dev/null || echo 1)
	given_threads=$threads
	choose_nodes
	check_nodes
	[ -n "$threads" ] || threads=$(((cores + streams - 1) / streams))
}

resumes() { [ -n "$resume" ] && [ -n "$(checkpoints "$out")" ]; }

# Rows of a micro-batch: all of a step, or with a GPU, or --micro auto, those of the plan whose step is shortest. They
# decide bits, so a training continues with those that it began with.
choose_micro() {
	case $micro in
	auto) [ -z "$node_count" ] || die 64 "--micro auto: not on several nodes, which may choose differently" ;;
	'') case $device,$node_count in cuda*,) ;; *) micro=$batch ;; esac ;;
	*[!0-9]*) die 64 "--micro wants a number, 1 to 999999999, or auto" ;;
	*) number micro "$micro" 999999999 ;;
	esac
	[ "$grad" != none ] || [ -z "${micro#auto}" ] || [ "$micro" = "$batch" ] ||
		die 64 "--grad none: a step is one micro-batch, so --micro must be --batch"
	[ -z "${micro#auto}" ] || return 0
	began_with=''
	if [ -n "$resume" ] && [ -e "$out/micro" ]; then
		check_own "$out/micro"
		began_with=$(sed -n "1s/^\([1-9][0-9]\{0,8\}\) of $batch\$/\1/p" "$out/micro")
	fi
	micro=$began_with
	if [ -z "$micro" ]; then
		check_model
		make_plan "$(mt-store stat --memory --json | json memory_available)" || die $code "$why"
		micro=$(json_of "$plan" rows)
	fi
	chosen=1
	step_options=$step_options--micro=$micro$nl
}

# Training continues in the order that it began with
choose_order() {
	if [ -z "$new_input" ] && resumes; then
		read_order
		return
	fi
	order=$seed
	for file in $data; do
		can_reread "$file" || order=none
	done
}

read_order() {
	order=$(head -c 100 "$out/order" 2>/dev/null | tr '\000' '?')
	[ "$order" != none ] || return 0
	# mt-feed reads its options from left to right
	mt-feed --shuffle="$order" --version >/dev/null 2>&1 ||
		die 65 "$out/order: '$order' is neither a seed nor none: give the --shuffle or --no-shuffle of before"
}

check_access() { # FILE
	[ ! -r "$1" ] || return 0
	dir=$1
	until [ -d "$dir" ]; do dir=$(dirname -- "$dir"); done
	if [ -e "$1" ] || [ ! -x "$dir" ]; then die 77 "$1: no permission to read it"; fi
}

# All that mt-step can say without a run. Its warnings come again when it starts: here only --dry-run shows them.
check_step() { # OPTIONS
	told=$(mt-step "$run" $step_options --check --config="$config" "$@" 2>&1 </dev/null); rc=$?
	if [ -n "$told" ] && { [ $rc != 0 ] || [ -n "$dry" ]; }; then printf '%s\n' "$told" >&2; fi
	[ $rc = 0 ] || exit $rc
}

# A checkpoint has six times as many files as the weights: they are at most 5 GB, too
check_descriptors() {
	files=0
	[ ! -d "$model" ] || files=$(find "$model/" -maxdepth 1 -name '*.safetensors' ! -name 'optim-*' 2>/dev/null |
		wc -l 2>/dev/null)
	[ "$files" -le 1 ] || need_descriptors $((12 + 8 * files))
}

no_model() {
	get="ORG/NAME --local-dir $model"
	case $model in
	/* | .* | */*/* | */) ;;
	*/*) get="$model --local-dir DIR" ;;
	esac
	case $config in *.json) die 66 "$config: no such file" ;; esac
	die 66 "$model: no such directory; mt does not download: 'hf download $get' does"
}

gone=''                                         # the model that a checkpoint stands for

# When the model of a training that continues is gone, its newest checkpoint has all of it, also config.json and
# tokenizer
check_model() {
	config=$model
	[ -d "$model" ] && config=$model/config.json
	check_access "$config"
	if [ ! -e "$config" ] && [ -n "$resume" ] && [ -d "$out" ]; then find_start; fi
	if [ ! -e "$config" ] && [ -n "$newest" ]; then
		tell "$model is gone: goes on from $newest alone"
		gone=$model model=$newest config=$newest/config.json
	fi
	if [ ! -d "$model" ] && [ ! -f "$config" ]; then no_model; fi
	[ ! -e "$config" ] || [ -f "$config" ] || die 65 "$config: not a regular file"
}

check_files() {
	check_model
	check_descriptors
	[ "${node:-0}" = 0 ] || return 0
	check_out
	check_access "${eval:-/dev/null}"
	[ -e "${eval:-/dev/null}" ] || die 66 "$eval: no such file"
	[ -n "$order" ] || choose_order
	[ "$order" = none ] || feed_options=$feed_options--shuffle=$order$nl
	turn_end=$(mt-feed --check --turn-end --config="$config" $check_options $feed_options $data <&9) || exit
	[ -z "$turn_end" ] || load_options=$load_options--turn-end=$turn_end$nl
	check_samples
	if [ -n "$json" ] && [ -z "$dry" ]; then die 64 "--json goes with --dry-run"; fi
	[ -n "$steps$epochs" ] || die 64 "--steps N or --epochs N is needed"
	if [ -n "$steps" ]; then
		check_step
		[ -z "$loss" ] ||
			mt-feed --check --loss="$loss" --config="$config" $check_options $feed_options $data <&9 || exit
	else                                        # counting checks that records are those of --loss, too
		check_step --steps=$MOST_STEPS
		count_steps
		mt-step "$run" $step_options --check </dev/null || exit
	fi
	if [ -z "$metrics" ]; then
		metrics=$out/metrics.jsonl
		step_options=$step_options--metrics=$metrics$nl--own-metrics$nl
	fi
	[ -z "$best" ] || can_reread_metrics ||
		die 64 "--metrics: $metrics is no file, and --best and --keep-best read evaluations from it"
}
