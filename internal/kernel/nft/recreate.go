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

// A table is recreated if a set or chain in it cannot become that of the next version. Its rules must serve until the
// next version is loaded. So one transaction copies the running table to another name, as text that nft lists, and
// replaces the table:
//
//	nft list table ─→ without dynamicRule, priorities later, FixListing ─→ table NAME-former ┐ one
//	sets of the next version ─────────────────────────────────────────────→ table NAME       ┘ transaction
//
// nft's listing is the only form in which the kernel gives the rules of a version that this process does not know.

// copySuffix ends the name of the copy. Load deletes the copy.
const copySuffix = "-former"

// maxRefused is how many times nft may refuse to load the copy. Then the table is recreated without a copy: nft may be
// unable to read the listing of another version of nft.
const maxRefused = 3

// dynamicRule matches a rule that adds an element to a set. The copy leaves these rules out. It lives too short to need
// their elements, and nft 1.0.6 crashes on some of its own listings: it runs out of registers if a rule has a hash in
// the key and an IPv6 address in the data.
var dynamicRule = regexp.MustCompile(`(?m)^\t\t.*\b(add|update) @\S+ \{.*\n`)

// hookPriority matches the priority of a base chain in nft's listing: a number, a name, or a name and a number.
var hookPriority = regexp.MustCompile(`(?m)^(\t\ttype \w+ hook .* priority )([a-z]+)?(?: ?([+-]) ?)?(\d+)?(;.*)$`)

// later returns the line of a base chain with the next higher priority, for the copy. Of two chains with the same
// priority the kernel calls the newer first. A packet that is between the two chains during the commit would miss both.
// With a higher priority the copy comes second, and the packet meets the copy.
func later(line string) string {
	part := hookPriority.FindStringSubmatch(line)
	n, _ := strconv.Atoi(part[3] + part[4]) // digits, or nothing
	if part[2] == "" {
		return fmt.Sprintf("%s%d%s", part[1], n+1, part[5])
	}
	return fmt.Sprintf("%s%s %+d%s", part[1], part[2], n+1, part[5])
}

// recreate replaces the table by text, and copies running rules to the table with copySuffix in the same transaction.
// held has the table's chains.
func (t *Table) recreate(ctx context.Context, rs *Ruleset, held []Chain, text string) error {
	text = fmt.Sprintf("delete table inet %s\n%s", t.name, text)
	runs := slices.ContainsFunc(held, func(c Chain) bool { return strings.HasPrefix(c.Name, markerPrefix) })
	if !runs || t.refused >= maxRefused {
		return t.run(ctx, text)
	}
	var out bytes.Buffer
	if err := command(ctx, &out, "", "list", "table", "inet", t.name); err != nil {
		return err
	}
	head, rest, ok := strings.Cut(out.String(), "\n")
	if !ok || head != fmt.Sprintf("table inet %s {", t.name) {
		return fmt.Errorf("nft: lists the table as %.80q", head)
	}
	rest = dynamicRule.ReplaceAllString(rest, "")
	rest = hookPriority.ReplaceAllStringFunc(rest, later)
	if rs.FixListing != nil {
		rest = rs.FixListing(rest)
	}
	copied := fmt.Sprintf("add table inet %s\ndelete table inet %[1]s\ntable inet %[1]s {\n%s\n", t.name+copySuffix, rest)
	err := t.run(ctx, copied+text)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		t.refused++
	}
	return err
}

// deleteCopy deletes the copy that recreate made, if there is one.
func (t *Table) deleteCopy(ctx context.Context) error {
	t.refused = 0
	return t.deleteTable(ctx, t.name+copySuffix)
}
