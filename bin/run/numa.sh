# numa.sh: --numa auto: the cores of each mt-stream and the policy of the store, as mt-store/NUMA.md recommends for one
# run that has the machine. taskset pins a stage; what the stage allocates is then on its node by the kernel's default,
# and elsewhere where that node is full.
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

sysfs=${MT_SYSFS_DIR:-/sys}
policy=''                                       # of the store; empty: nothing is placed
places=''                                       # a line for each mt-stream: NODES CORES NUMBER [GPU]; empty: all

choose_nodes() { # may set streams
	case $numa in none) return ;; auto) ;; *) die 64 "--numa: '$numa' is not auto or none" ;; esac
	command -v taskset >/dev/null || die 78 "--numa auto needs taskset: apt-get install util-linux"
	nodes=$(list_nodes)
	set -- $nodes
	[ $# -gt 1 ] || return 0
	policy=interleave:$(printf '%s\n' "$nodes" | cut -d ' ' -f 1 | paste -sd , -)
	case $device in
	cuda*)
		places=$(for one in $devices; do
			find_gpu "$one"
			printf '%s\n' "$nodes" | sed -n "s/^${gpu_node:-unknown} .*/& $gpu/p"
		done | share_of_gpus)
		[ "$(printf '%s\n' "$places" | wc -l)" = "$streams" ] || places='' ;;
	*)
		micros=$(((batch + micro - 1) / micro))
		case $given in
		*' --streams '*) ;;
		*) streams=$(printf '%s\n' $MOST_STREAMS $# $micros | sort -n | head -n 1) ;;
		esac
		[ "$streams" = 1 ] || places=$(printf '%s\n' "$nodes" | share "$streams") ;;
	esac
}

# Lines NODE CORES NUMBER: the nodes that have memory and cores that mt-run may use, and these cores
list_nodes() {
	set +f
	may=$(LC_ALL=C taskset -cp $$ 2>/dev/null)
	for dir in "$sysfs"/devices/system/node/node[0-9]*; do
		[ -r "$dir/cpulist" ] && echo "${dir##*node} $(cat "$dir/cpulist")"
	done | sort -n | awk -v may="${may##*: }" -v memory="$(cat "$sysfs/devices/system/node/has_memory" 2>/dev/null)" '
		function members(list, set,    i, n, c, part, ends) {
			n = split(list, part, ",")
			for (i = 1; i <= n; i++) {
				if (split(part[i], ends, "-") == 1) ends[2] = ends[1]
				for (c = ends[1] + 0; c <= ends[2] + 0; c++) set[c] = 1
			}
		}
		BEGIN {
			members(may, allowed)
			members(memory, has_memory)
		}
		{
			split("", of_node)
			members($2, of_node)
			list = ""
			number = 0
			for (c = first = 0; c <= 65536; c++) {
				if ((c in of_node) && (c in allowed)) {
					number++
					continue
				}
				if (first < c) list = list (list == "" ? "" : ",") (first == c - 1 ? first : first "-" c - 1)
				first = c + 1
			}
			if (number && (memory == "" || $1 in has_memory)) print $1, list, number
		}'
}

# Lines of list_nodes to lines of places for N mt-streams: each gets separate nodes, or they share nodes
share() { # N
	awk -v streams="$1" '
		{ node[NR] = $1; list[NR] = $2; number[NR] = $3 }
		END {
			for (i = 0; NR && i < streams; i++) {
				first = streams < NR ? int(i * NR / streams) : i % NR
				last = streams < NR ? int((i + 1) * NR / streams) - 1 : first
				sharing = streams < NR ? 1 : int((streams - 1 - first) / NR) + 1
				nodes = cores = ""
				n = 0
				for (j = first + 1; j <= last + 1; j++) {
					nodes = nodes (nodes == "" ? "" : ",") node[j]
					cores = cores (cores == "" ? "" : ",") list[j]
					n += number[j]
				}
				print nodes, cores, int((n + sharing - 1) / sharing)
			}
		}'
}

# The same for a line of each GPU's node, with the GPU behind: those of one node share its cores
share_of_gpus() {
	awk '
		{ line[NR] = $1 " " $2; number[NR] = $3; gpu[NR] = $4; of[NR] = $1; sharing[$1]++ }
		END {
			for (i = 1; i <= NR; i++) print line[i], int((number[i] + sharing[of[i]] - 1) / sharing[of[i]]), gpu[i]
		}'
}

# Sets gpu, its PCI address, and gpu_node; empty if they cannot be known
find_gpu() { # DEVICE
	gpu=${1#cuda} gpu_node=''
	gpu=${gpu#:}
	: "${gpu:=0}"
	[ -z "${CUDA_VISIBLE_DEVICES-}" ] || gpu=$(printf '%s\n' "$CUDA_VISIBLE_DEVICES" | cut -d , -f $((gpu + 1)))
	gpu=$(nvidia-smi -i "$gpu" --query-gpu=pci.bus_id --format=csv,noheader 2>/dev/null | tr A-F a-f |
		sed -n 's/^0*\([0-9a-f]\{4,\}:[0-9a-f]\{2\}:[0-9a-f]\{2\}\.[0-9a-f]\)$/\1/p')
	[ -z "$gpu" ] || gpu_node=$(cat "$sysfs/bus/pci/devices/$gpu/numa_node" 2>/dev/null)
}

# Sets for mt-stream I: pin, the words before its command; own, its threads; on and list, its nodes and cores; gpu
place() { # I
	pin='' own=$threads on='' list='' gpu=''
	[ -n "$places" ] || return 0
	IFS=' ' read -r on list own gpu <<-END
		$(printf '%s\n' "$places" | sed -n "$(($1 + 1))p")
	END
	pin="taskset${nl}-c$nl$list"
	[ -z "$given_threads" ] || own=$threads
}

tell_nodes() {
	[ "$numa" = auto ] || return 0
	if [ -z "$policy" ]; then tell "NUMA: there is one node, so nothing is placed"; return; fi
	tell "NUMA: the store is interleaved over nodes ${policy#*:}; mt-optim runs on all of them"
	if [ -z "$places" ]; then
		case $device in
		cuda*) tell "NUMA: the mt-streams run on all nodes: that of the GPU is not known" ;;
		*) tell "NUMA: one mt-stream runs on all nodes (one a node needs several micro-batches a step: --micro)" ;;
		esac
		return
	fi
	text='' does=' runs and allocates' i=0
	while [ $i -lt "$streams" ]; do
		place $i
		text="$text${text:+, }mt-stream.$i$does on node $on (cores $list)${gpu:+, that of GPU $gpu}"
		does='' i=$((i + 1))
	done
	tell "NUMA: $text"
}
