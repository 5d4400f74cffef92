# Writes a bash completion of one program, made from the text that it prints with --help.
# usage: PROGRAM --help | awk -f completion.awk -v program=PROGRAM
# (lines of another program's table may follow: a script passes options on)
#
# From the usage come the verbs, whether a RUN is an operand, and the values of options ([--dtype bf16|fp32]); from the
# table the options, what their values are, and the verbs that take them ("create, init: ...").

# "cpu|chaos:SEED|cuda[:N]" -> "cpu chaos: cuda"; empty if it is no list of words
function alternatives(s,    n, i, part, list) {
	n = split(s, part, "|")
	for (i = 1; i <= n; i++) {
		sub(/\[.*/, "", part[i])
		sub(/[A-Z].*/, "", part[i])
		if (part[i] !~ /^[a-z0-9]+:?$/) return ""
		list = list (i > 1 ? " " : "") part[i]
	}
	return list
}

# "linear (default), cosine, wsd or constant" -> "linear cosine wsd constant"; empty if it is no such list
function enumeration(s,    n, i, part, list) {
	sub(/^--[a-z-]+: /, "", s)
	gsub(/ *\([^)]*\)/, "", s)
	sub(/;.*/, "", s)
	gsub(/,? or /, ", ", s)
	n = split(s, part, /, /)
	for (i = 1; i <= n; i++) {
		if (part[i] !~ /^[a-z0-9]+$/) return ""
		list = list (i > 1 ? " " : "") part[i]
	}
	return n > 1 ? list : ""
}

function usage_line(line,    token, option) {
	if (line ~ / \[?RUN\]?( |$)/) run = 1
	sub(/^usage:/, "", line)
	if (match(line, "^ *" program " [a-z]+ ")) {
		token = substr(line, RSTART, RLENGTH - 1)
		sub(/.* /, "", token)
		if (!(token in is_verb)) verbs = verbs " " token
		is_verb[token] = 1
	}
	while (match(line, /--[a-z0-9-]+ [A-Za-z0-9][^ ]*/)) {
		token = substr(line, RSTART, RLENGTH)
		line = substr(line, RSTART + RLENGTH)
		sub(/\]$/, "", token)
		option = token
		sub(/ .*/, "", option)
		sub(/^[^ ]* /, "", token)
		in_the_usage[++usage_count] = option
		usage_takes[option] = token
		if (token ~ /[:|]/ && alternatives(token) != "") values[option] = alternatives(token)
	}
}

function add(option) {
	if (!(option in known)) { known[option] = 1; options[++count] = option }
}

# the verbs at the beginning of an option's description
function verbs_of(text,    n, i, part) {
	if (!match(text, /^[a-z]+(, [a-z]+)*( --[a-z-]+)?: /)) return ""
	text = substr(text, 1, RLENGTH - 2)
	sub(/ --.*/, "", text)
	n = split(text, part, /, /)
	for (i = 1; i <= n; i++) if (!(part[i] in is_verb)) return ""
	gsub(/,/, "", text)
	return text
}

function table_line(line,    option, arg, text) {
	sub(/^  (-[a-zA-Z], )?/, "", line)
	text = line
	if (!sub(/^.*  +/, "", text)) text = ""
	while (match(line, /^--[a-z0-9-]+,? ?/)) {
		option = substr(line, 1, RLENGTH)
		gsub(/[, ]/, "", option)
		line = substr(line, RLENGTH + 1)
		arg = line
		sub(/[ ,].*/, "", arg)
		if (arg ~ /^--/) arg = ""
		line = substr(line, length(arg) + 1)
		sub(/^,? /, "", line)
		add(option)
		for_verbs[option] = verbs_of(text)
		if (arg == "") continue
		takes[option] = arg
		if (option in values) continue
		if (alternatives(arg) != "") values[option] = alternatives(arg)
		else if (arg ~ /^(HOW|NAME|TYPE)$/) values[option] = enumeration(text)
	}
}

/^usage:/ { in_usage = 1 }
/^$/ { in_usage = 0 }
in_usage { usage_line($0); next }
/^  (-[a-zA-Z], )?--[a-z]/ { table_line($0) }

END {
	for (i = 1; i <= usage_count; i++) {
		option = in_the_usage[i]
		if (option in known) continue
		add(option)
		takes[option] = usage_takes[option]
	}
	for (i = 1; i <= count; i++) {
		option = options[i]
		if (option in values && values[option] != "")
			words = words sprintf("\t%s) words='%s' ;;\n", option, values[option])
		else if (option in takes && takes[option] ~ /FILE|DIR/) files = files (files ? " | " : "") option
		else if (option in takes) other = other (other ? " | " : "") option
		if (for_verbs[option] == "") general = general " " option
		else {
			m = split(for_verbs[option], part, " ")
			for (j = 1; j <= m; j++) special[part[j]] = special[part[j]] " " option
		}
	}
	name = "_" program
	gsub(/-/, "_", name)
	print "# bash completion of " program ", made from its --help"
	print name "() {"
	print "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words=''"
	print "\tCOMPREPLY=()"
	print "\tif [ \"$cur\" = = ]; then cur=''                # --option=VALUE is three words"
	print "\telif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi"
	print "\tcase $prev in"
	printf "%s", words
	if (files) print "\t" files ") return ;;        # readline completes file names"
	if (other) print "\t" other ")\n\t\tcompopt +o default 2>/dev/null    # nor file names\n\t\treturn ;;"
	print "\tesac"
	print "\tif [ -n \"$words\" ]; then :"
	print "\telif [[ $cur == -* ]]; then"
	print "\t\twords='" substr(general, 2) "'"
	if (verbs) {
		print "\t\tcase ${COMP_WORDS[1]} in"
		n = split(substr(verbs, 2), part, " ")
		for (i = 1; i <= n; i++) if (part[i] in special) {
			print "\t\t" part[i] ") words=\"$words" special[part[i]] "\" ;;"
			delete special[part[i]]
		}
		print "\t\tesac"
		print "\telif [ \"$COMP_CWORD\" = 1 ]; then words='" substr(verbs, 2) "'"
	}
	if (run) print "\telse words=$(mt-store ls --json 2>/dev/null | sed -n 's/^{\"run\":\"\\([^\"]*\\)\".*/\\1/p')"
	print "\tfi"
	print "\tmapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")"
	print "}"
	print "complete -o default -F " name " " program
}
