# dry-run.sh: what a start would find and do
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

# The plan of a micro-batch on the device that is there, as JSON, in $plan. 0, or mt-stream's exit code and its message
# in $why; if that is 71, the plan does without HOST-BYTES
make_plan() { # [HOST-BYTES]
	kind=$(device_of 0)
	case $kind in chaos:*) kind=cpu ;; esac
	gpu_streams=${devices:+$streams}
	if [ -z "$micro" ]; then split=--batch=$batch       # to be selected
	else
		machines=$((${node_count:-1} * ${gpu_streams:-1}))
		split=--micro=$micro$nl--micro-batches=$((((batch + micro - 1) / micro + machines - 1) / machines))
	fi
	plan=$(mt-stream --plan --json --config "$config" --seq "$seq" $split --dtype "$dtype" \
		--grad "$grad" --state "$state" --optim "$optim" --update "$update" --device "$kind" \
		${threads:+--threads=$((threads * streams))} ${compute:+--compute="$compute"} ${loss:+--loss="$loss"} \
		${top:+--top="$top"} \
		${pack:+--pack="$pack"} ${1:+--host-memory="$1"} ${gpu_streams:+--streams="$gpu_streams"} \
		${tier:+--tier="${tier_rate:-1000000}"} ${tier_memory:+--tier-memory="$tier_memory"} \
		${train:+--train="$train"} ${freeze:+--freeze="$freeze"} ${mtp:+--mtp="$mtp"} \
		${node_count:+--nodes="$node_count"} ${node_count:+--net="${net:-1000000}"} 2>&1)
	code=$?
	why=$(printf '%s\n' "$plan" | sed -n 's/^mt-stream: //p' | tail -n 1)
	plan=$(printf '%s\n' "$plan" | sed -n '/^{/p')
	return $code
}

dry_run() {
	[ "${node:-0}" = 0 ] || dry_run_elsewhere
	find_start
	began=$(newest_step)
	check_start
	countable=1
	for file in $data; do can_reread "$file" || countable=''; done
	if [ -n "$countable" ] && [ -z "$count" ]; then count_data; fi
	find_plan
	text=$(report); rc=$?
	[ -z "$json" ] || text=$(printf '%s\n' "$text" | MT_RUN_AS=object mt-run)
	print "$text"
	exit $rc
}

# What a start would make, or load
check_start() {
	[ ! -e "$out" ] || [ -d "$out" ] || die 73 "$out is not a directory"
	dir=$(existing "$out")
	if [ ! -w "$dir" ] || [ ! -x "$dir" ]; then die 74 "$out: cannot be written"; fi
	shm=${MT_SHM_DIR:-/dev/shm}
	if [ ! -w "$shm" ] || [ ! -x "$shm" ]; then die 74 "$shm: the run's memory cannot be made there (MT_SHM_DIR)"; fi
	if [ -z "$newest" ] && [ -d "$model" ]; then mt-ckpt verify "$model" $load_options || exit; fi
	[ -z "$tier" ] || check_drives
}

# Directories of --tier, each with the same part: the least room, if they are not in OUT
check_drives() {
	for drive in $drives; do
		at=$(existing "$drive")
		case $(stat -f -c %T -- "$at") in
		ext2/ext3 | xfs | btrfs | f2fs) ;;
		*) die 78 "--tier: $drive: wants ext4, xfs, btrfs or f2fs, has $(stat -f -c %T -- "$at")" ;;
		esac
		[ "$drive" != "$out/tier" ] || continue
		room=$(free_in "$drive")
		if [ -z "$tier_free" ] || [ "$room" -lt "$tier_free" ]; then tier_free=$room; fi
	done
}

# Other nodes than 0 say only that their memory is short
dry_run_elsewhere() {
	began=0 json=''
	find_plan
	text=$(report) || { [ $? = 71 ] && die 71 "$text"; }
	exit 0
}

find_plan() {
	available=$(mt-store stat --memory --json | json memory_available) short='' remedy=''
	: "${available:=0}"
	make_plan "$available" || [ $code = 71 ] || die $code "$why"
	if [ $code = 71 ]; then
		case $why in *'; fits: '*) remedy="${why#*; fits: } would fit" ;; esac
		: "${remedy:=too large for this machine: a smaller model or --seq, or more memory}"
		short=${why%%: a smaller*}
	fi
	[ "${node:-0}" != 0 ] || tell_nodes
}

# Control characters in names become '?': they could command the terminal.
printable() { printf %s "$1" | LC_ALL=C tr '\000-\037\177' '[?*]' | LC_ALL=C sed 's/\xc2[\x80-\x9f]/?/g'; }

report() {
	shm=${MT_SHM_DIR:-/dev/shm}
	# names by the environment, since awk's -v would turn backslashes into other characters
	{ printf '%s\n' "$plan" | json | sed "s/^/plan$tab/"; printf '%s\n' "$count" | json; } |
		model=$(printable "$config") shm=$(printable "$shm") \
		LC_ALL=C awk -F '\t' -v short="$short" -v remedy="$remedy" -v json="$json" \
		-v dtype="$dtype" -v grad="$grad" -v state="$state" -v optim="$optim" -v device="$device" \
		-v steps="$steps" -v began="$began" -v epochs="${epochs:-1}" -v batch="$batch" -v micro="$micro" \
		-v seq="$seq" -v nodes="$node_count" -v net="$net" -v drop_unused="$drop_unused" -v kept="$(checkpoints_kept)" \
		-v max_skipped="$max_skipped" -v pack="$pack" \
		-v tier="$tier_given" -v tier_rate="$tier_rate" -v tier_free="$tier_free" -v last="${until:-$steps}" \
		-v drives="$(printf '%s\n' "$drives" | wc -l)" \
		-v elsewhere="${node#0}" -v available="$available" -v shm_free="$(free_in "$shm")" \
		-v disk_free="$(free_in "$out")" "$words$sizes"'
		# of the plan, and of the count of the data
		$1 == "plan" { plan[$2] = $3 == "null" ? "" : $3; next }
		$1 != "" { count[$1] = $2 }
		# lack: of memory, the only thing that other nodes than 0 print
		function line(name, text, lack) {
			if (elsewhere != "") printf "%s", lack ? text "\n" : ""
			else if (json == "") printf "%-9s %s\n", name, text
		}
		function set(name, value) {
			names[++named] = name
			return value_of[name] = value
		}
		function share(part, all) { return sprintf("%.0f %%", all ? 100 * part / all : 0) }
		function fits(need, have) { return need <= have ? "fits" : "does not fit" }
		END {
			model = ENVIRON["model"]
			shm = ENVIRON["shm"]
			planned = "params" in plan
			counted = "rows" in count
			n = plan["params"]
			some = plan["trained_params"] < n ? human(plan["trained_params"]) " of " : ""
			line("model", (n ? some human(n) " parameters, " : "") dtype ", gradients " grad \
				(optim == "adamw" ? "" : ", optimizer " optim) \
				(state == "fp32" ? "" : ", optimizer state " state) ", " model)
			if (nodes != "") line("nodes", nodes ", all as this one; " (net == "" ? \
				"the time leaves the network out (--net GB/s)" : "the network carries " net " GB/s to each"))
			if (counted) data()
			else line("data", "is read only once, so it is not counted; " many(steps, "step"))
			set("steps", steps)
			set("micro", micro)
			set("nodes", nodes == "" ? 1 : nodes)
			if (planned) memory()
			else {
				line("memory", short ": " remedy, 1)
				bad = 71
			}
			set("fits", bad ? "false" : "true")
			for (i = 1; json != "" && i <= named; i++) print names[i] "\t" value_of[names[i]]
			exit bad ? bad : bad_data
		}
		# Training stops after this number of skipped steps in a row
		function targets(rows, none,    skipped, in_row) {
			skipped = set("steps_skipped", count["steps_skipped"])
			in_row = count["steps_skipped_in_row"]
			if (!skipped && none <= rows / 2) return
			if (began == 0 && ((max_skipped && in_row >= max_skipped) || skipped >= steps)) bad_data = 65
			line("targets", sprintf("%.0f of %s an epoch %s none, every token is context only; %s would be " \
				"skipped, %d in a row%s", none, many(rows, "row"), (none == 1 ? "has" : "have"), many(skipped, "step"),
				in_row, bad_data ? ": training would stop (--max-skipped)" : ""))
		}
		function data(    i, n, key, rows, longest, cut) {
			n = split("documents tokens targets longer rows padding answers answers_cut rows_without_targets", key, / /)
			for (i = 1; i <= n; i++) set(key[i], count[key[i]] / epochs)
			rows = value_of["rows"]
			longest = set("longest", count["longest"])
			line("data", sprintf("%s, %s tokens, %s targets an epoch; the longest has %s; %s are longer than --seq %d",
				many(value_of["documents"], "document"), human(value_of["tokens"]), human(value_of["targets"]),
				many(longest, "token"), share(value_of["longer"], value_of["documents"]), seq))
			line("rows", sprintf("%d of %d tokens an epoch, %s padding", rows + 0.5, seq,
				share(value_of["padding"], rows * seq)))
			line("steps", sprintf("%.1f an epoch, %d in all%s", rows / batch, steps,
				began > 0 ? ", " began " of them trained" : ""))
			set("steps_in_data", count["steps"])
			if (count["rows"] < batch * (steps - 1)) line("", "the data ends at step " count["steps"])
			targets(rows, value_of["rows_without_targets"])
			cut = value_of["answers_cut"]
			if (cut && pack != "concat")
				line("answers", sprintf("%.0f of %.0f %s question, which --seq %d cuts off: --long drop leaves " \
					"out documents that are too long", cut, value_of["answers"],
					(cut == 1 ? "loses its" : "lose their"), seq))
		}
		# on disk: what the drives of --tier have beside checkpoints
		function on_drives(    disk, step, each) {
			if (tier == "") return 0
			disk = set("tier_bytes", plan["tier_bytes"])
			step = set("tier_written", plan["tier_written"])
			each = disk / drives
			line("tier", gb(disk) " of lo, m and v in files" \
				(tier_free == "" ? "" : ", " gb(each) " of " gb(tier_free) " free in a directory: " \
				fits(each, tier_free)))
			if (tier_free != "" && each > tier_free && !bad) bad = 74
			line("", gb(2 * step) " a step, " (tier_rate == "" ? \
				"and no measured rate, so that the time leaves it out: mt-tier --bench DIR, in each" : \
				sprintf("%.1f s at %.3g GB/s: a step waits %.1f s", plan["tier_s"], tier_rate,
				plan["tier_wait_s"])))
			line("", sprintf("%s in all to the drives%s", gb(step * (last - began)), step * (last - began) <= 0.5e15 ? \
				"" : ": look up how much they are rated for (TBW)"))
			set("tier_s", tier_rate == "" ? "null" : plan["tier_s"])
			set("tier_wait_s", tier_rate == "" ? "null" : plan["tier_wait_s"])
			return tier_free == "" ? disk : 0
		}
		function memory(    host, own, cores, shared, carried, disk, each, time, rate, faster) {
			cores = device !~ /^cuda/ || plan["unified"] == "true" # memory is that of the host
			own = set("device_bytes", plan["peak_bytes"])
			shared = set("shared_bytes", plan["host_bytes"] - plan["host_activation_bytes"])
			host = set("host_bytes", plan["host_bytes"] + (cores ? own : 0))
			set("host_available", available)
			set("shared_free", shm_free)
			line("host", gb(host) " of " gb(available) " memory available: " fits(host, available) \
				(remedy == "" ? "" : "; " remedy), host > available)
			if (host > available) bad = 71
			else if (shared > shm_free) {
				line("", shm " has " gb(shm_free) " free, needs " gb(shared) ": mount -o remount,size=" \
					int(shared / 1048576 * 1.1 + 1) "M " shm, 1)
				bad = 71
			}
			if (!cores) line("device", gb(own) " of " gb(plan["memory"]) " device memory: fits")
			carried = drop_unused == "" ? plan["carried_bytes"] : 0
			each = set("checkpoint_bytes", checkpoint_bytes(plan["params"], plan["state_params"], state, optim, dtype,
				carried))
			disk = set("disk_bytes", disk_bytes(kept, each, plan["params"], dtype, carried) + on_drives())
			set("disk_free", disk_free)
			line("disk", gb(disk) " of " gb(disk_free) " free: " files(kept, each) ": " fits(disk, disk_free) \
				(disk > disk_free ? "; a smaller --keep, or another --out" : ""))
			if (!bad && disk > disk_free) bad = 74
			rate = set("tokens_per_s", batch * (counted ? count["tokens"] / count["rows"] : seq) / plan["step_s"])
			time = set("time_s", (steps - began) * plan["step_s"])
			if (host > available) return
			line("speed", (!counted ? "at most " : "") (rate < 10 ? sprintf("%.2f", rate) : human(rate)) \
				" tokens/s, " many(steps - began, "step") " in " clock(time) ", predicted by the rates of " \
				plan["profile"])
			faster = plan["faster_with"]
			if (faster != "") line("", sprintf("%.2f", plan["faster_times"]) " times as fast with " faster)
		}'
}
