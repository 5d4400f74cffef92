# Writes a bash completion of one program, made from what it prints with --options (shm/cli/README.md).
# usage: PROGRAM --options | awk -f completion.awk -v program=PROGRAM

BEGIN { FS = "\t" }

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

function either(list, option) { return list (list ? " | " : "") option }

$1 == "" {      # a form of usage: program, verb, operands
	if ($2 ~ / \[?RUN\]?( |$)/) run = 1
	split($2, word, " ")
	if (word[1] == program && word[2] ~ /^[a-z]+$/ && !is_verb[word[2]]++) verbs = verbs " " word[2]
	next
}
{
	option = (length($1) > 1 ? "--" : "-") $1
	if (alternatives($3) != "") words = words sprintf("\t%s) words='%s' ;;\n", option, alternatives($3))
	else if ($3 ~ /FILE|DIR/) files = either(files, option)
	else if ($2 != "flag") other = either(other, option)
	if ($5 !~ /^[a-z]/) general = general " " option
	n = split($5, verb, " ")
	for (i = 1; i <= n; i++) special[verb[i]] = special[verb[i]] " " option
}

END {
	name = "_" program
	gsub(/-/, "_", name)
	print "# bash completion of " program ", made from its --options"
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
		n = split(substr(verbs, 2), verb, " ")
		for (i = 1; i <= n; i++) print "\t\t" verb[i] ") words=\"$words" special[verb[i]] "\" ;;"
		print "\t\tesac"
		print "\telif [ \"$COMP_CWORD\" = 1 ]; then words='" substr(verbs, 2) "'"
	}
	if (run) print "\telse words=$(mt-store ls --json 2>/dev/null | sed -n 's/^{\"run\":\"\\([^\"]*\\)\".*/\\1/p')"
	print "\tfi"
	print "\tmapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")"
	print "}"
	print "complete -o default -F " name " " program
}
