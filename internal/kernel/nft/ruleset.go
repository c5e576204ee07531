package nft

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// A Ruleset is the constant part of a table: sets, maps, chains and rules. Source is a text/template of nft's syntax.
// The template may use Data and {{.Table}}, the name of the table.
//
// The template must declare the chain {{.Marker}} without rules. Its name contains a hash of the whole ruleset. So a
// restart finds out that the kernel has this ruleset already.
//
// Declare and Prune search the text by line. So all sets, maps and chains must be blocks in one
// "table inet {{.Table}} {", indented by one tab, from "chain NAME {" to "}".
type Ruleset struct {
	Source string
	Data   map[string]any
	// Salt is part of the ruleset's version too. It represents rules that the caller writes over netlink.
	Salt string
	// DynamicChain reports whether the caller writes a chain of this name over netlink. A load leaves such chains
	// alone. All other chains that the ruleset lacks are emptied by a load and removed by Prune. nil: no chain is
	// dynamic.
	DynamicChain func(name string) bool
	// FixListing changes a listing of the table by nft to a text that nft can load. This is needed if nft lists dynamic
	// chains in a form that it refuses, or that has another meaning. nil: nft can load its listing.
	FixListing func(listing string) string
}

// Text returns the ruleset in nft's syntax.
func (rs *Ruleset) Text(table string) (string, error) {
	text, _, err := rs.render(table)
	return text, err
}

// render returns the text, and the name of the marker in it.
func (rs *Ruleset) render(table string) (text, marker string, err error) {
	t, err := template.New("ruleset").Option("missingkey=error").Parse(rs.Source)
	if err != nil {
		return "", "", fmt.Errorf("parse embedded ruleset: %w", err)
	}
	data := maps.Clone(rs.Data)
	if data == nil {
		data = map[string]any{}
	}
	data["Table"] = table
	marker = "unnamed" // in the first round: its text is hashed
	for range 2 {
		data["Marker"] = markerPrefix + marker
		var out strings.Builder
		if err := t.Execute(&out, data); err != nil {
			return "", "", fmt.Errorf("render embedded ruleset: %w", err)
		}
		text = out.String()
		sum := sha256.Sum256([]byte(text + rs.Salt))
		if marker == "unnamed" {
			marker = hex.EncodeToString(sum[:])[:12]
		}
	}
	return text, markerPrefix + marker, nil
}

// isDynamic reports whether the caller writes this chain over netlink.
func (rs *Ruleset) isDynamic(chain string) bool {
	return rs.DynamicChain != nil && rs.DynamicChain(chain)
}

// chainPattern matches the first line of a chain in a ruleset. setPattern matches a whole set or map.
const chainPattern, setPattern = `(?m)^\tchain (\S+) \{`, `(?ms)^\t(?:set|map) (\S+) \{.*?^\t\}`

// declared returns the names in a ruleset's text that match a pattern.
func declared(text, pattern string) map[string]bool {
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		names[m[1]] = true
	}
	return names
}

// Loaded is the result of a Declare or a Load.
type Loaded uint8

const (
	// Unchanged: the kernel had the ruleset already.
	Unchanged Loaded = iota
	// InPlace: the kernel had another ruleset, or none. Sets with the same name in both kept their elements.
	InPlace
	// Recreated: the table could not become the ruleset's in place. It was deleted and added, so all sets are empty.
	Recreated
)

// ErrRecreated says that a Load recreated the table after the caller had filled its sets, because another program
// changed it in between. The caller reads the table and fills it again.
var ErrRecreated = errors.New("another program changed the table before the rules were loaded; the table is recreated")

// Declare prepares a Load that does not interrupt traffic. If the kernel does not run rs, Declare adds the sets and
// maps of rs and nothing else. The caller then fills them, adds the dynamic chains, and calls Load, which switches the
// rules. If the kernel runs rs, Declare removes the remains of older versions, like Prune.
//
// If a set or chain cannot become that of rs, for example a set of another type, the table is recreated. In the same
// transaction the running rules move to another table, where they serve until Load.
func (t *Table) Declare(ctx context.Context, rs *Ruleset) (did Loaded, err error) {
	text, marker, err := rs.render(t.name)
	if err != nil {
		return Unchanged, err
	}
	chains, err := t.list(ctx)
	if err != nil {
		return Unchanged, err
	}
	if hasChain(chains, marker) {
		return Unchanged, t.finish(ctx, rs)
	}
	d, err := t.compare(ctx, text, chains)
	if err == nil {
		err = t.mayWrite()
	}
	if err != nil {
		return Unchanged, err
	}
	sets := regexp.MustCompile(setPattern).FindAllString(text, -1)
	text = fmt.Sprintf("table inet %s {\n%s\n}\n", t.name, strings.Join(sets, "\n"))
	if did = InPlace; d.conflict != "" {
		did = Recreated
		err = t.recreate(ctx, rs, chains, text)
	} else {
		err = t.run(ctx, text)
	}
	if err == nil {
		err = t.verifySets(ctx, declared(text, setPattern))
	}
	if err != nil {
		return Unchanged, fmt.Errorf("declare sets: %w", err)
	}
	return did, nil
}

// Load makes the kernel run rs. If again is set, it loads rs also if the kernel seems to run it. After InPlace and
// Recreated the caller writes the dynamic chains again, after Recreated the elements too.
//
// The rules are replaced in one transaction, and elements stay. A base chain with another hook, type or priority is
// replaced in the same transaction. The table is recreated only if a set or chain cannot become that of rs. A failure
// of nft never recreates it, and changes nothing.
func (t *Table) Load(ctx context.Context, rs *Ruleset, again bool) (did Loaded, err error) {
	text, marker, err := rs.render(t.name)
	if err != nil {
		return Unchanged, err
	}
	chains, err := t.list(ctx)
	if err != nil {
		return Unchanged, err
	}
	if hasChain(chains, marker) && !again {
		return Unchanged, t.finish(ctx, rs)
	}
	d, err := t.compare(ctx, text, chains)
	if err == nil {
		err = t.mayWrite()
	}
	if err != nil {
		return Unchanged, err
	}
	if did = InPlace; d.conflict != "" {
		did = Recreated
		err = t.run(ctx, fmt.Sprintf("delete table inet %s\n%s", t.name, text))
	} else {
		err = t.run(ctx, t.removeRules(rs, chains, d.moved, marker)+text)
	}
	if err == nil {
		err = t.verifyChain(ctx, marker)
	}
	if err == nil {
		err = t.deleteCopy(ctx)
	}
	if err != nil {
		return Unchanged, fmt.Errorf("load ruleset: %w", err)
	}
	return did, nil
}

// finish removes the remains of an older version, in case the process that loaded rs ended too early. Chains stay as
// long as other rules lead to them (EBUSY): the next load removes those rules first.
func (t *Table) finish(ctx context.Context, rs *Ruleset) error {
	if err := t.deleteCopy(ctx); err != nil {
		return err
	}
	if err := t.Prune(ctx, rs); !errors.Is(err, unix.EBUSY) {
		return err
	}
	return nil
}

// removeRules returns the commands that come before the text of rs. They remove the present rules, so that these do not
// run in addition to the rules of rs.
func (t *Table) removeRules(rs *Ruleset, chains []Chain, moved []string, marker string) string {
	var all strings.Builder
	for _, c := range chains {
		if !rs.isDynamic(c.Name) {
			fmt.Fprintf(&all, "flush chain inet %s %s\n", t.name, c.Name)
		}
	}
	for _, c := range chains {
		if strings.HasPrefix(c.Name, markerPrefix) && c.Name != marker || slices.Contains(moved, c.Name) {
			fmt.Fprintf(&all, "delete chain inet %s %s\n", t.name, c.Name)
		}
	}
	return all.String()
}

// verifyChain fails if the table lacks the chain although nft reported success.
func (t *Table) verifyChain(ctx context.Context, name string) error {
	if _, there, err := t.reader.Chain(ctx, Inet, t.name, name); err != nil || there {
		return err
	}
	return errNotDone
}

// verifySets fails if the table lacks one of the sets although nft reported success.
func (t *Table) verifySets(ctx context.Context, names map[string]bool) error {
	if len(names) == 0 {
		return nil
	}
	held, err := t.sets(ctx)
	for name := range names {
		if _, ok := held[name]; err == nil && !ok {
			err = errNotDone
		}
	}
	return err
}

var errNotDone = errors.New("nft reported success, but the kernel lacks chains or sets of the ruleset" +
	" [another program named nft is in PATH, or deletes our table]")

// Prune removes the chains and sets of older versions: those that are neither in rs nor dynamic. The caller calls it
// after a Load that loaded, when it has written the dynamic chains and nothing leads to the old chains.
func (t *Table) Prune(ctx context.Context, rs *Ruleset) error {
	text, marker, err := rs.render(t.name)
	if err != nil {
		return err
	}
	chains, err := t.list(ctx)
	if err != nil || chains == nil {
		return err
	}
	sets, err := t.sets(ctx)
	if err != nil {
		return err
	}
	known := declared(text, chainPattern)
	return t.Commit(ctx, func(c *nftables.Conn) (queued bool, err error) {
		c.FlushChain(t.Chain(marker)) // the kernel echoes the first message: this one is small
		isOld := func(name string) bool { return !known[name] && !rs.isDynamic(name) }
		for _, chain := range chains {
			if isOld(chain.Name) {
				c.FlushChain(t.Chain(chain.Name))
			}
		}
		declared := declared(text, setPattern)
		for name, shape := range sets {
			if !declared[name] {
				s := t.Set(name)
				if s.IsMap = shape.flags&unix.NFT_SET_MAP != 0; s.IsMap {
					c.FlushSet(s) // its verdicts may lead to chains
				}
				c.DelSet(s)
				queued = true
			}
		}
		for _, chain := range chains {
			if isOld(chain.Name) {
				c.DelChain(t.Chain(chain.Name))
				queued = true
			}
		}
		return queued, nil
	}, nil)
}
