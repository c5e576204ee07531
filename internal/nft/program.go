package nft

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/google/nftables"

	fwnetlink "github.com/fairway-net/fairway/internal/netlink"
)

// markerPrefix begins the name of the empty chain that identifies the loaded program.
const markerPrefix = "program-"

// A Program is the constant part of a table: sets, maps, chains and rules, as a
// text/template of what nft reads. Besides Data it may use {{.Table}}, the table's name.
// It must declare the chain {{.Marker}}, without rules: the name has a hash of the whole
// program, so that a restart finds out that there is nothing to load.
//
// Its sets, maps and chains are declared in blocks in one "table inet {{.Table}} {", each
// indented by one tab, "chain NAME {" up to "}", because Declare and Prune must find
// them.
type Program struct {
	Source string
	Data   map[string]any
	// Salt is the rest of the program's version: rules that are written over netlink.
	Salt string
	// Keep says which other chains belong to the table, written over netlink. A load does
	// not touch them. It empties all other chains, and Prune removes those. Nil: none.
	Keep func(chain string) bool
}

// Text returns the program as nft reads it.
func (p *Program) Text(table string) (string, error) {
	text, _, err := p.render(table)
	return text, err
}

// render returns the text and the marker in it.
func (p *Program) render(table string) (text, marker string, err error) {
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

// Declare comes before a Load that must not interrupt traffic: if the kernel does not run
// p, it adds the sets and maps of p, and nothing else. The caller fills them, adds the
// chains that p keeps, and calls Load to switch the rules over. Declare returns true if
// there was nothing to do.
func (t *Table) Declare(ctx context.Context, p *Program) (runs bool, err error) {
	text, marker, err := p.render(t.name)
	if err != nil {
		return false, err
	}
	chains, err := t.Chains(ctx)
	if err != nil || chains[marker] {
		return err == nil, err
	}
	if err := t.mayWrite(); err != nil {
		return false, err
	}
	sets := regexp.MustCompile(setPattern).FindAllString(text, -1)
	text = fmt.Sprintf("table inet %s {\n%s\n}\n", t.name, strings.Join(sets, "\n"))
	if err = t.run(ctx, text); err != nil && len(chains) > 0 { // a set of the same name has another type
		err = t.run(ctx, fmt.Sprintf("delete table inet %s\n%s", t.name, text))
	}
	if err != nil {
		return false, fmt.Errorf("declare sets: %w", err)
	}
	return false, nil
}

// Load makes the kernel run p, with again also if p seems to be loaded. It returns whether
// it loaded p: then the chains that p keeps must be written again.
//
// Rules are replaced in one transaction. Elements stay, so that a new version of the agent
// takes over the elements of an old version. Only if a set of the same name has another
// type, Load deletes the table first: give such a set a new name.
func (t *Table) Load(ctx context.Context, p *Program, again bool) (loaded bool, err error) {
	text, marker, err := p.render(t.name)
	if err != nil {
		return false, err
	}
	chains, err := t.list(ctx)
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(chains, func(c Chain) bool { return c.Name == marker }) && !again {
		return false, nil
	}
	var all strings.Builder
	for _, c := range chains {
		if p.Keep == nil || !p.Keep(c.Name) {
			fmt.Fprintf(&all, "flush chain inet %s %s\n", t.name, c.Name)
		}
	}
	for _, c := range chains {
		if strings.HasPrefix(c.Name, markerPrefix) && c.Name != marker {
			fmt.Fprintf(&all, "delete chain inet %s %s\n", t.name, c.Name)
		}
	}
	all.WriteString(text)
	if err := t.mayWrite(); err != nil {
		return false, err
	}
	if err = t.run(ctx, all.String()); err != nil && len(chains) > 0 {
		err = t.run(ctx, fmt.Sprintf("delete table inet %s\n%s", t.name, text))
	}
	if err != nil {
		return false, fmt.Errorf("load program: %w", err)
	}
	return true, nil
}

// Prune removes the chains and sets that neither p nor its Keep has: those of older
// programs. It is called after a Load that loaded, when the chains that p keeps are
// written again and nothing refers to the old chains any more.
func (t *Table) Prune(ctx context.Context, p *Program) error {
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
		old := func(name string) bool { return !known[name] && (p.Keep == nil || !p.Keep(name)) }
		for _, chain := range chains {
			if old(chain.Name) {
				c.FlushChain(t.Chain(chain.Name))
			}
		}
		declared := declared(text, setPattern)
		for name, isMap := range sets {
			if !declared[name] {
				s := t.Set(name)
				if s.IsMap = isMap; isMap {
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

// Run runs the program nft on text, in one transaction.
func (t *Table) Run(ctx context.Context, text string) error {
	if err := t.mayWrite(); err != nil {
		return err
	}
	return t.run(ctx, text)
}

func (t *Table) run(ctx context.Context, text string) error {
	return t.count(ctx, 1, func() error { return command(ctx, text, "-f", "-") })
}

// count calls run, which starts a program that makes n transactions in our name.
func (t *Table) count(ctx context.Context, n uint32, run func() error) error {
	from, err := t.Generation(ctx)
	if err != nil {
		return err
	}
	l := t.ledger
	runs := l.begin(t.origin, from, n)
	failed := run()
	to, err := t.Generation(ctx)
	l.end(ctx, runs, to, failed != nil || err != nil)
	return failed // a Watch finds out which changes these generations were
}

// Try makes the kernel check text as Run would load it, and changes nothing.
func Try(ctx context.Context, text string) error { return command(ctx, text, "-c", "-f", "-") }

// stopAfter is how long the program nft may run after it was killed.
const stopAfter = 5 * time.Second

// command runs the program nft in the network namespace of the calling thread.
func command(ctx context.Context, stdin string, args ...string) error {
	path, err := exec.LookPath("nft")
	if err != nil {
		return errNoNFT
	}
	ctx, cancel := fwnetlink.Bounded(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = stopAfter
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = cmd.Run()
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("nft: %w", context.Cause(ctx))
	}
	if err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		return fmt.Errorf("nft: %w: %s [needs root and a kernel with nf_tables, 5.13 or later]", err, line)
	}
	return nil
}

// Probe reports why a table cannot work here: no privileges, no nf_tables, no nft. It
// changes nothing.
func (t *Table) Probe(ctx context.Context) error {
	if _, err := exec.LookPath("nft"); err != nil {
		return errNoNFT
	}
	_, _, err := t.reader.Table(ctx, Inet, t.name)
	return err
}

var errNoNFT = errors.New("the program nft is not installed [apt-get install nftables]")
