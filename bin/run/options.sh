# options.sh: mt-run's own options, and those that it collects for mt-step and mt-feed, which check them
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

MOST_STREAMS=64                                 # of a run, on all of its nodes
model='' data='' out='' compute='' streams=1 shares='' threads='' run=run-$$
batch='' micro='' seq='' eval='' steps='' until='' epochs='' order='' resume='' record=''
clip='' tier_given='' tier='' tier_memory='' tier_tile='' copy_tier='' tier_rate='' tier_free=''
chosen=''                                       # set: micro is not the user's choice
train='' freeze='' mtp=''
restart='' drop_unused='' load_options='' new_input='' best='' export_best='' nodes='' net=''
ckpt_every='' eval_every='' stop_after='' max_skipped='' loss=''    # mt-step's
demo='' sample='' sample_every='' sample_options='' join='' top=''
metrics='' show='' quiet='' dry='' json=''      # show: metrics on stdout also where that is a terminal
feed_options='' check_options='' step_options='' given=' ' count=''

options_of() { MT_RUN_AS=options mt-run "$@"; } # --help, ...: of mt-run's own, whose table is in mt-store/run/options.c
names() { sed -n "s/^\\([a-z0-9-]\\{1,\\}\\)$tab$1.*/--\\1/p"; }    # TYPE: of rows on stdin

# The options are mt-run's own, and those of mt-step and mt-feed but for what mt-run itself asks these programs, in rows
# as shm/cli/README.md has them. Variables get the defaults that mt-run itself needs.
read_options() {
	driver=mt-step
	[ -z "$score" ] || driver=mt-score
	rows=$(options_of --options
		$driver --options | grep -Ev "^($tab|(check|count|config|own-metrics|metrics|micro|help|version)$tab)"
		mt-feed --options | grep -E "^(eos|block|bytes|u16|u32|mix)$tab")
	eval "$(printf '%s\n' "$rows" | awk -F '\t' '
		$1 == "version" { passed_on = 1 }
		$4 != "" && (!passed_on || $1 == "pack" || $1 == "max-skipped") { sub(/-/, "_", $1); print $1 "=" $4 }')"
	[ -z "$score" ] || rows=$(printf '%s\n' "$rows" | grep -E "^($SCORE_OPTIONS)$tab")
	flags=$(printf '%s\n' "$rows" | names flag)
	with_value=$(printf '%s\n' "$rows" | names '[^f]')
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
	--args)
		[ -n "$2" ] || die 64 "--args: an empty name"
		return ;;                               # find_args has read it
	--model | --out | --dtype | --grad | --state | --optim | --update | --seed | --device | --compute | --streams | \
		--threads | --numa | --keep | --run | --net | --sample | --tier-memory | --tier-tile | \
		--train | --freeze | --mtp | \
		--demo) return ;;
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
	--top) [ -z "$score" ] || step_options=$step_options$1=$2$nl ;;
	--micro) [ "$2" = auto ] || step_options=$step_options$1=$2$nl ;;
	*) step_options=$step_options$1=$2$nl ;;
	esac
}

set_flag() { # FLAG
	case $1 in
	--help | --version) options_of "$1"; exit ;;
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
		--options) print "$rows"; exit 0 ;;
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
--tokens --sum --join --top'

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
