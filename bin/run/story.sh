# story.sh: what people read: what starts and what it became; on a terminal also evaluations and saves. A run that fails
# before its first step has no story, but the error's line.
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

# began: the step after which training began; empty: it has not; exported: the step that OUT/model has, at_end: the last
began='' follower='' exported='' at_end=''

many() { [ "$1" = 1 ] && echo "1 $2" || echo "$1 $2s"; }   # N NOUN

# awk: 4877568 -> 4.88M, 3600 -> 1:00:00
words='
function human(n,    i) {
	for (i = 1; n >= 999.5 && i < 5; i++) n /= 1000
	return sprintf(i == 1 ? "%d" : n < 9.995 ? "%.2f%s" : n < 99.95 ? "%.1f%s" : "%.0f%s", n, substr(" KMGT", i, 1))
}
function many(n, noun) { return sprintf("%.0f %s%s", n, noun, n == 1 ? "" : "s") }
function clock(s) {
	if (s < 60) return sprintf("%.1f s", s)
	s = int(s + 0.5)
	return sprintf("%d:%02d:%02d", s / 3600, s % 3600 / 60, s % 60)
}'

begin_story() {
	began=$(newest_step)
	params=$(fact params)
	warn_of_disk
	[ -z "$quiet" ] || return 0
	[ ! -t 2 ] || tell_start
	follow
}

tell_start() {
	(: >"$tmp/start-told") 2>/dev/null
	size=$(LC_ALL=C awk -v n="$params" -v trained="$(fact trained_params)" \
		"$words BEGIN { print (trained < n ? human(trained) \" of \" : \"\") human(n) }")
	what="$(fact family), $size parameters in $dtype"
	if [ -n "$newest" ]; then from="from $newest"
	elif [ -d "$model" ]; then from="from $model"
	else from="from random weights (seed $seed)"; fi
	tell "trains $what, $from, on $device; results go to $out"
	[ "$began" -lt "${until:-$steps}" ] || return 0         # mt-step says so
	last=${until:-$steps}
	[ -z "$count" ] || last="$last ($(many "$epochs" epoch))"
	set -- $data
	more=''
	[ $# = 1 ] || more=" and $(($# - 1)) more"
	[ "$order" = none ] || more="$more, shuffled (seed $order)"
	split=''
	[ -z "$chosen" ] || split=", in micro-batches of $(many "$micro" row)"
	tell "steps $((began + 1)) to $last, each of $(many "$batch" row) of $(many "$seq" token)$split, of $1$more"
	tell_nodes
}

# Keep in OUT what belongs to what it has: the commands of all starts, the order and the count of the data
keep_command() {
	[ -n "$newest" ] || rm -f "$out/command"
	(printf '%s\n' "$command # $(date '+%Y-%m-%d %H:%M:%S') in $(pwd)" >>"$out/command") 2>/dev/null ||
		cannot_keep command
	keep order "$order"
	[ -z "$chosen" ] || keep micro "$micro of $batch"
	[ -z "$count" ] || keep count "$inputs $count"
}

keep() { # NAME LINE. What is right stays: without OUT/order, training could not go on with the same input.
	[ "$(cat "$out/$1" 2>/dev/null)" != "$2" ] || return 0
	write_new "$out/$1" "$2" || cannot_keep "$1"
}

cannot_keep() { # NAME
	say "$out/$1: cannot be written"
	finish 74
}

quoted() { # WORDS: as a shell reads them
	for word; do
		case $word in
		'' | *[!A-Za-z0-9_./:=,@%+-]*) printf " '%s'" "$(printf %s "$word" | sed "s/'/'\\\\''/g")" ;;
		*) printf ' %s' "$word" ;;
		esac
	done
}

# Not on a terminal, in a FIFO or on a descriptor: reading would wait, or take lines from their reader.
can_reread_metrics() {
	case $metrics in /dev/std* | /dev/fd/* | /proc/*) return 1 ;; esac
	[ -f "$metrics" ] || [ ! -e "$metrics" ]
}

# Let the function READER read values of the metrics, a line a step, as they come; +1: all of the file's, 0: only new
# ones. Sets watcher, for end_watching.
watch_metrics() { # READER +1|0 PATH...
	reader=$1 lines=$2
	shift 2
	(
		exec 4>&- 5<&- 6<&- 7>&-
		{
			tail -n "$lines" -F --pid=$$ "$metrics" &
			echo $! >"$tmp/$reader.pid"         # for end_watching
			wait
		} 2>/dev/null | json "$@" | "$reader"   # a shell may say that tail was killed
	) &
	watcher=$!
}

end_watching() { # READER WATCHER
	tries=0
	while lives "$2"; do
		signal_to KILL "$tmp/$1.pid"
		sleep 0.05
		tries=$((tries + 1))
		[ $tries -lt 100 ] || kill -9 "$2" 2>/dev/null
	done
	wait "$2"
}

# A process that tells what happens
follow() {
	can_reread_metrics || return 0
	watch_metrics follow_lines 0 step eval_loss
	follower=$watcher
}

follow_lines() {
	told=$(checkpoints "$out")
	while IFS=$tab read -r at loss; do
		if [ ! -t 2 ]; then tell_start; return; fi
		if [ -n "$loss" ] && { [ "$at" -gt "$began" ] || [ "$began" = 0 ]; }; then
			[ "$loss" = null ] || loss=$(LC_ALL=C printf %.4f "$loss")
			tell "step $at: eval loss $loss"
		fi
		for dir in $(checkpoints "$out"); do
			case $nl$told$nl in *"$nl$dir$nl"*) continue ;; esac
			[ -e "$dir/run.json" ] || continue
			told=$told$nl$dir
			tell "saved $dir"
			(echo "$dir" >"$tmp/told-save") 2>/dev/null
		done
	done
}

end_following() {
	[ -n "$follower" ] || return 0
	end_watching follow_lines "$follower"
	follower=''
}

# Metrics of the steps since `began`. The run also knows how many they are: metrics may be missing, on a full
# disk, in a file that was deleted, or where they cannot be read.
trained_metrics() { # LAST-STEP: prints the last step, empty if none was trained, and a line of words
	file=/dev/null
	if can_reread_metrics && [ -r "$metrics" ]; then file=$metrics; fi
	json step loss eval_loss processed time_s skipped margin accuracy <"$file" |
		LC_ALL=C awk -v began="$began" -v step="$1" -F '\t' "$words"'
		BEGIN {
			split("loss margin accuracy", shown, " ")
			split("2 7 8", column, " ")
			split("%.4f %.4f %.2f", form, " ")
		}
		{
			if ($3 != "" && $3 != "null" && (best == "" || $3 + 0 < best + 0)) {
				best = $3
				at = $1
			}
			if ($2 == "" || $1 + 0 <= (steps ? newest : began) + 0) next
			steps++
			for (i = 1; i <= 3; i++)
				if ((v = $column[i]) != "" && v != "null") value[i, ++known[i]] = v
			newest = $1
			tokens += $4
			if ($5 != "null") {
				timed += $4
				time += $5
			}
			if ($6 == "true") skipped++
		}
		function mean(of, from, to,    sum, i) {
			for (i = from; i <= to; i++) sum += value[of, i]
			return sum / (to - from + 1)
		}
		function first_and_last(of, n,    share) {
			share = n < 40 ? 1 : int(n / 20)                # a step alone says little
			return sprintf(form[of] " to " form[of], mean(of, 1, share), mean(of, n - share + 1, n))
		}
		END {
			if (newest + 0 > step + 0) step = newest
			trained = step - began
			if (trained <= 0) {
				print "\nno step was trained"
				exit
			}
			printf "%s\n%s", step, many(trained, "step")
			if (steps && steps < trained) printf "; the metrics have %d", steps
			if (steps) printf "%s %s tokens in %s", (steps < trained ? ":" : ","), human(tokens), clock(time)
			if (time > 0) printf ", %s tokens/s", human(timed / time)
			for (i = 1; i <= 3; i++) if (known[i]) printf "; %s %s", shown[i], first_and_last(i, known[i])
			if (skipped) printf "; %d skipped", skipped
			if (best != "") printf "; best eval loss %.4f at step %d", best, at
			print ""
		}'
}

committed() { mt-store stat "$run" --json 2>/dev/null | json step; }    # the run's last committed step

# Which step OUT/model has
exported_step() {
	if [ "$exported" != "$at_end" ]; then echo "step $exported, whose eval loss is the lowest of those that are saved"
	elif [ "$best_step" != "$at_end" ]; then
		echo "step $at_end, and step $best_step has a lower eval loss (--best exports that)"
	else echo "step $at_end"; fi
}

tell_training() { # CODE
	end_following
	trains=$(trained_metrics "$(committed)")
	trained=${trains%%"$nl"*} trains=${trains#*"$nl"}
	if [ -n "$quiet" ] || { [ -z "$trained$signal" ] && [ "$1" != 0 ]; }; then began=''; return; fi
	[ -e "$tmp/start-told" ] || tell_start
	how=''
	[ "$1" = 0 ] || how="ended by an error: "
	[ -z "$signal" ] || how="stopped by SIG$signal: "
	tell "$how$trains"
	[ -n "$exported" ] || return 0
	from_python="transformers.AutoModelForCausalLM.from_pretrained(\"$out/model\")"
	tell "the model is in $out/model; in Python: $from_python; it is $(exported_step)"
}

tell_result() { # CODE
	saved=$(checkpoint_of "${trained:-$began}")
	[ -e "$saved/run.json" ] || return 0
	first_line "$tmp/told-save"                 # on a terminal, it may have been reported when it came
	words="saved $saved"
	[ "$first" != "$saved" ] || words=''
	if [ -n "$signal" ] || [ "$1" != 0 ] || [ "${until:-$steps}" != "$steps" ]; then
		words="${words:+$words; }continue with the same command"
		[ -n "$resume" ] || words="$words and --resume"
		[ "$1$signal" != 0 ] || words="$words, without --until"
	fi
	[ -z "$words" ] || tell "$words"
}
