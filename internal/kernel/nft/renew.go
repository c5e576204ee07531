package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// formerSuffix ends the name of the table in which a former program goes on while its own
// table begins anew.
const formerSuffix = "-former"

// maxRefused is how often nft may refuse to move what runs, before the table begins anew
// without it: nft may not be able to read what another version of it has loaded.
const maxRefused = 3

// dynamicRule matches a rule that adds an element to a set. The copy lives too short to need
// what packets add, and nft 1.0.6 fails an assertion on some of its own rules: it runs out of
// registers where one has a hash in the key and an IPv6 address in the data.
var dynamicRule = regexp.MustCompile(`(?m)^\t\t.*\b(add|update) @\S+ \{.*\n`)

// hookPriority matches the priority of a base chain, as nft lists it: a number, a name, or a
// name and a number.
var hookPriority = regexp.MustCompile(`(?m)^(\t\ttype \w+ hook .* priority )([a-z]+)?(?: ?([+-]) ?)?(\d+)?(;.*)$`)

// later is the line of a base chain with the next priority. The kernel calls, of two chains
// with the same priority, the one that came last first: a packet that is between the two when
// the transaction is committed would find the copy too young, and then what runs too old.
// Behind it, the copy is what such a packet finds.
func later(line string) string {
	part := hookPriority.FindStringSubmatch(line)
	n, _ := strconv.Atoi(part[3] + part[4]) // digits, or nothing
	if part[2] == "" {
		return fmt.Sprintf("%s%d%s", part[1], n+1, part[5])
	}
	return fmt.Sprintf("%s%s %+d%s", part[1], part[2], n+1, part[5])
}

// renew replaces the table by text. If a program runs in it, the program goes on in a copy,
// which comes in the same transaction. deleteFormer removes the copy.
func (t *Table) renew(ctx context.Context, p *Ruleset, held []Chain, text string) error {
	text = fmt.Sprintf("delete table inet %s\n%s", t.name, text)
	runs := slices.ContainsFunc(held, func(c Chain) bool { return strings.HasPrefix(c.Name, markerPrefix) })
	if !runs || t.refused >= maxRefused {
		return t.run(ctx, text)
	}
	var out bytes.Buffer
	if err := command(ctx, &out, "", "list", "table", "inet", t.name); err != nil {
		return err
	}
	former := t.name + formerSuffix
	head, rest, ok := strings.Cut(out.String(), "\n")
	if !ok || head != fmt.Sprintf("table inet %s {", t.name) {
		return fmt.Errorf("nft: lists the table as %.80q", head)
	}
	rest = dynamicRule.ReplaceAllString(rest, "")
	rest = hookPriority.ReplaceAllStringFunc(rest, later)
	if p.FixListing != nil {
		rest = p.FixListing(rest)
	}
	moved := fmt.Sprintf("add table inet %s\ndelete table inet %[1]s\ntable inet %[1]s {\n%s\n", former, rest)
	err := t.run(ctx, moved+text)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		t.refused++
	}
	return err
}

// deleteFormer removes the copy that renew made, if there is one.
func (t *Table) deleteFormer(ctx context.Context) error {
	t.refused = 0
	return t.deleteTable(ctx, t.name+formerSuffix)
}
