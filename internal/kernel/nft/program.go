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

// markerPrefix begins the name of the empty chain that identifies the loaded program.
const markerPrefix = "program-"

// A Ruleset is the constant part of a table: sets, maps, chains and rules, as a
// text/template of what nft reads. Besides Data it may use {{.Table}}, the table's name.
// It must declare the chain {{.Marker}}, without rules: the name has a hash of the whole
// program, so that a restart finds out that there is nothing to load.
//
// Its sets, maps and chains are declared in blocks in one "table inet {{.Table}} {", each
// indented by one tab, "chain NAME {" up to "}", because Declare and Prune must find
// them.
type Ruleset struct {
	Source string
	Data   map[string]any
	// Salt is the rest of the program's version: rules that are written over netlink.
	Salt string
	// DynamicChain says which other chains belong to the table, written over netlink. A load does
	// not touch them. It empties all other chains, and Prune removes those. Nil: none.
	DynamicChain func(chain string) bool
	// FixListing makes, of what nft lists of the table, what nft can load: of rules written over netlink that
	// mean something else in nft's order, or that it refuses. They serve until the program is loaded. Nil: nft loads what it lists.
	FixListing func(listed string) string
}

// Text returns the program as nft reads it.
func (p *Ruleset) Text(table string) (string, error) {
	text, _, err := p.render(table)
	return text, err
}

// render returns the text and the marker in it.
func (p *Ruleset) render(table string) (text, marker string, err error) {
	t, err := template.New("ruleset").Option("missingkey=error").Parse(p.Source)
	if err != nil {
		return "", "", fmt.Errorf("parse embedded ruleset: %w", err)
	}
	data := maps.Clone(p.Data)
	if data == nil {
		data = map[string]any{}
	}
	data["Table"] = table
	marker = "unnamed" // while its hash is taken
	for range 2 {
		data["Marker"] = markerPrefix + marker
		var out strings.Builder
		if err := t.Execute(&out, data); err != nil {
			return "", "", fmt.Errorf("render embedded ruleset: %w", err)
		}
		text = out.String()
		sum := sha256.Sum256([]byte(text + p.Salt))
		if marker == "unnamed" {
			marker = hex.EncodeToString(sum[:])[:12]
		}
	}
	return text, markerPrefix + marker, nil
}

// chainPattern matches the first line of a chain in a program, setPattern a whole set or map.
const chainPattern, setPattern = `(?m)^\tchain (\S+) \{`, `(?ms)^\t(?:set|map) (\S+) \{.*?^\t\}`

func declared(text, pattern string) map[string]bool {
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		names[m[1]] = true
	}
	return names
}

// A Loaded is what a Declare or a Load found and did.
type Loaded uint8

// Unchanged: the kernel runs the program, so nothing was done. InPlace: the kernel ran
// another program, or none; the elements of sets that have the same name in both are there.
// Recreated: the table could not become the program's, and began again: all its sets are empty.
const (
	Unchanged Loaded = iota
	InPlace
	Recreated
)

// ErrRecreated says that a Load began the table anew after its sets were filled: another program
// changed it in between. The caller reads and fills it again.
var ErrRecreated = errors.New("another program changed the table before the rules were loaded; it begins anew")

// Declare comes before a Load that must not interrupt traffic: if the kernel does not run
// p, it adds the sets and maps of p, and nothing else. The caller fills them, adds the
// chains that p keeps, and calls Load to switch the rules over. If p runs, it removes what
// is left of a former program, as Prune.
//
// If the table has a set or chain that cannot become p's (a set of another type), it begins
// anew. What runs is moved to another table in the same transaction, where it goes on as it
// is until Load.
func (t *Table) Declare(ctx context.Context, p *Ruleset) (did Loaded, err error) {
	text, marker, err := p.render(t.name)
	if err != nil {
		return Unchanged, err
	}
	chains, err := t.list(ctx)
	if err != nil {
		return Unchanged, err
	}
	if slices.ContainsFunc(chains, func(c Chain) bool { return c.Name == marker }) {
		return Unchanged, t.finish(ctx, p)
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
	if did = InPlace; d.reason != "" {
		did = Recreated
		err = t.renew(ctx, p, chains, text)
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

// Load makes the kernel run p, with again also if p seems to be loaded. If it did something,
// the chains that p keeps must be written again; after Anew the elements too.
//
// Rules are replaced in one transaction. Elements stay, so that a new version of the agent
// finds what the old one wrote; the caller brings them up to date. A base chain at another
// hook, type or priority is replaced in the same transaction. Only if the table has a set
// or chain that cannot become p's, it begins anew; an nft that fails never makes it do so,
// and leaves what was there.
func (t *Table) Load(ctx context.Context, p *Ruleset, again bool) (did Loaded, err error) {
	text, marker, err := p.render(t.name)
	if err != nil {
		return Unchanged, err
	}
	chains, err := t.list(ctx)
	if err != nil {
		return Unchanged, err
	}
	runs := slices.ContainsFunc(chains, func(c Chain) bool { return c.Name == marker })
	if runs && !again {
		return Unchanged, t.finish(ctx, p)
	}
	d, err := t.compare(ctx, text, chains)
	if err == nil {
		err = t.mayWrite()
	}
	if err != nil {
		return Unchanged, err
	}
	if did = InPlace; d.reason != "" {
		did = Recreated
		err = t.run(ctx, fmt.Sprintf("delete table inet %s\n%s", t.name, text))
	} else {
		err = t.run(ctx, t.replaceRules(p, chains, d.moved, marker)+text)
	}
	if err == nil {
		err = t.verifyChain(ctx, marker)
	}
	if err == nil {
		err = t.deleteFormer(ctx)
	}
	if err != nil {
		return Unchanged, fmt.Errorf("load program: %w", err)
	}
	return did, nil
}

// finish removes what is left of another program if the process that loaded p ended before it
// could do so. Chains that rules of another program lead to stay: the load that removes
// those rules comes first.
func (t *Table) finish(ctx context.Context, p *Ruleset) error {
	if err := t.deleteFormer(ctx); err != nil {
		return err
	}
	if err := t.Prune(ctx, p); !errors.Is(err, unix.EBUSY) {
		return err
	}
	return nil
}

// replaceRules is what comes before the text of p, so that the rules of another program, or
// of p itself, do not run beside it.
func (t *Table) replaceRules(p *Ruleset, chains []Chain, moved []string, marker string) string {
	var all strings.Builder
	for _, c := range chains {
		if p.DynamicChain == nil || !p.DynamicChain(c.Name) {
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

// verifyChain fails if the table has no such chain: nft said that it was done.
func (t *Table) verifyChain(ctx context.Context, name string) error {
	if _, there, err := t.reader.Chain(ctx, Inet, t.name, name); err != nil || there {
		return err
	}
	return errNotDone
}

// verifySets fails if the table lacks one of the sets: nft said that it was done.
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

var errNotDone = errors.New("nft reported success, but the kernel does not have what it was to load [another program named nft is in PATH, or deletes our table]")

// Prune removes the chains and sets that neither p nor its Keep has: those of older
// programs. It is called after a Load that loaded, when the chains that p keeps are
// written again and nothing refers to the old chains any more.
func (t *Table) Prune(ctx context.Context, p *Ruleset) error {
	text, marker, err := p.render(t.name)
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
		c.FlushChain(t.Chain(marker)) // it has no rules; the first message is echoed
		old := func(name string) bool { return !known[name] && (p.DynamicChain == nil || !p.DynamicChain(name)) }
		for _, chain := range chains {
			if old(chain.Name) {
				c.FlushChain(t.Chain(chain.Name))
			}
		}
		declared := declared(text, setPattern)
		for name, shape := range sets {
			if !declared[name] {
				s := t.Set(name)
				if s.IsMap = shape.flags&unix.NFT_SET_MAP != 0; s.IsMap {
					c.FlushSet(s) // its verdicts may hold chains
				}
				c.DelSet(s)
				queued = true
			}
		}
		for _, chain := range chains {
			if old(chain.Name) {
				c.DelChain(t.Chain(chain.Name))
				queued = true
			}
		}
		return queued, nil
	}, nil)
}
