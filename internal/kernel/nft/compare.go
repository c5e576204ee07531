package nft

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

// This file answers: is the table in the kernel ours, and unchanged? Three comparisons answer together:
//
//	marker  which ruleset was loaded?                       the name of a chain without packets    Runs
//	seal    are the rules as we left them?                  a hash of all rules, in that chain     Seal, Sealed
//	shape   can the next ruleset take over the sets and     their types and hooks; after a load    compare
//	        base chains in place?                           they are equal to the ruleset's

// markerPrefix begins the name of the chain that identifies the loaded ruleset.
const markerPrefix = "program-"

// sealPrefix begins the seal: the comment of the only rule in the marker's chain.
const sealPrefix = "rules "

// Runs reports whether the kernel runs rs, and whether it runs another version of the table's ruleset. The other
// version may be in the copy that Declare makes.
func (t *Table) Runs(ctx context.Context, rs *Ruleset) (this, another bool, err error) {
	_, marker, err := rs.render(t.name)
	if err != nil {
		return false, false, err
	}
	for _, name := range []string{t.name, t.name + copySuffix} {
		chains, err := t.listOf(ctx, name)
		if err != nil {
			return false, false, err
		}
		for _, c := range chains {
			this = this || c.Name == marker && name == t.name
			another = another || c.Name != marker && strings.HasPrefix(c.Name, markerPrefix)
		}
	}
	return this, another, nil
}

// Seal stores the hash of the rules at the last End in the kernel. The next process compares it with the rules that it
// finds. The marker alone is not enough: another program may have changed rules while no process of ours watched, and a
// process may have ended before it removed old rules. Seal does nothing if the kernel has the same seal.
func (w *Watch) Seal(ctx context.Context, rs *Ruleset) error {
	text := sealOf(w.rules)
	if text == w.sealed {
		return nil
	}
	_, marker, err := rs.render(w.table.name)
	if err != nil {
		return err
	}
	held, err := w.table.readSeal(ctx, marker)
	if err == nil && held != text {
		chain := w.table.Chain(marker)
		err = w.table.Commit(ctx, func(c *nftables.Conn) (bool, error) {
			c.FlushChain(chain)
			c.AddRule(&nftables.Rule{
				Table: w.table.Ref(), Chain: chain, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}},
				UserData: userdata.AppendString(nil, userdata.TypeComment, text),
			})
			return true, nil
		}, nil)
	}
	if err != nil {
		return fmt.Errorf("seal rules: %w", err)
	}
	w.sealed = text
	return nil
}

// Sealed reports whether the rules of the table are equal to the rules at the last Seal of rs.
func (t *Table) Sealed(ctx context.Context, rs *Ruleset) (bool, error) {
	_, marker, err := rs.render(t.name)
	if err != nil {
		return false, err
	}
	held, err := t.readSeal(ctx, marker)
	if err != nil || held == "" {
		return false, err
	}
	rules, err := t.rules(ctx)
	return err == nil && held == sealOf(rules), err
}

// readSeal returns the seal in the marker's chain, or "" if there is none.
func (t *Table) readSeal(ctx context.Context, marker string) (text string, err error) {
	err = t.reader.Rules(ctx, Inet, t.name, marker, func(r Rule) error {
		if strings.HasPrefix(r.Comment, sealPrefix) {
			text = r.Comment
		}
		return nil
	})
	return text, err
}

// sealOf returns the seal of a table, given the hashes of the rules of each chain. The order of chains does not matter.
func sealOf(rules map[string][]uint64) string {
	var sum uint64
	for chain, hashes := range rules {
		h := fnv.New64a()
		b := append([]byte(chain), 0)
		for _, one := range hashes {
			b = binary.BigEndian.AppendUint64(b, one)
		}
		_, _ = h.Write(b) // a hash never fails
		sum += h.Sum64()
	}
	return fmt.Sprintf("%s%016x", sealPrefix, sum)
}

// rules returns the chains of the table with the hash of each of their rules, or nil if there is no table.
func (t *Table) rules(ctx context.Context) (map[string][]uint64, error) {
	chains, err := t.list(ctx)
	if err != nil || chains == nil {
		return nil, err
	}
	all := make(map[string][]uint64, len(chains))
	for _, c := range chains {
		all[c.Name] = nil
	}
	return all, t.addHashes(ctx, all, "")
}

// addHashes adds the hashes of a chain's rules to all, or the hashes of all rules if chain is empty. It leaves out the
// seal.
func (t *Table) addHashes(ctx context.Context, all map[string][]uint64, chain string) error {
	return t.reader.Rules(ctx, Inet, t.name, chain, func(r Rule) error {
		if !strings.HasPrefix(r.Chain, markerPrefix) {
			all[r.Chain] = append(all[r.Chain], r.Hash)
		}
		return nil
	})
}

// A setShape has the properties of a set or map that the kernel cannot change.
type setShape struct {
	flags   uint32 // only the flags in shapeFlags
	key     uint32 // the types of the key, six bits each
	keyLen  uint32 // in bytes
	data    uint32 // the types of the data, like key
	dataLen uint32 // in bytes; 0 for verdicts: their size is internal to the kernel
	counter bool   // elements have counters
}

const shapeFlags = unix.NFT_SET_INTERVAL | unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL | nftSetConcat

// Constants that x/sys/unix lacks: NFT_SET_CONCAT, NFTA_SET_EXPR, NFTA_SET_EXPRESSIONS.
const (
	nftSetConcat       = 0x80
	nftaSetExpr        = 17
	nftaSetExpressions = 18
)

// A chainShape has the properties of a base chain that the kernel cannot change. The zero value is a chain without a
// hook.
type chainShape struct {
	kind     string // filter, nat, route
	hook     uint32
	priority int32
}

// verdictType is the number of nft's type verdict.
const verdictType = 0xffffff00

// setTypes has the numbers of nft's types and their sizes in bytes. The numbers never change, because the kernel stores
// them. Keys with a blank are expressions for typeof.
var setTypes = map[string]struct{ id, size uint32 }{
	"ipv4_addr": {7, 4}, "ip daddr": {7, 4}, "ip saddr": {7, 4},
	"ipv6_addr": {8, 16}, "ip6 daddr": {8, 16}, "ip6 saddr": {8, 16},
	"inet_proto": {12, 1}, "meta l4proto": {12, 1},
	"inet_service": {13, 2}, "th dport": {13, 2}, "th sport": {13, 2},
	"nf_proto": {2, 1}, "meta nfproto": {2, 1},
	"mark": {19, 4}, "meta mark": {19, 4}, "ct mark": {19, 4},
	"classid": {23, 4}, "meta priority": {23, 4},
	"ether_addr": {9, 6}, "@th,176,48": {4, 6},
	"ifname": {41, 16}, "iface_index": {20, 4}, "ct id": {4, 4}, "verdict": {verdictType, 0},
	"numgen random": {4, 4}, "numgen inc": {4, 4}, "jhash": {4, 4},
}

// priorities are nft's names of priorities in family inet.
var priorities = map[string]int32{"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100}

var hooks = map[string]uint32{
	"prerouting": unix.NF_INET_PRE_ROUTING, "input": unix.NF_INET_LOCAL_IN, "forward": unix.NF_INET_FORWARD,
	"output": unix.NF_INET_LOCAL_OUT, "postrouting": unix.NF_INET_POST_ROUTING,
}

// blockPattern matches a whole set, map or chain in a ruleset: kind, name and body.
var blockPattern = regexp.MustCompile(`(?ms)^\t(set|map|chain) (\S+) \{\n(.*?)^\t\}`)

// hookPattern matches the first line of a base chain.
var hookPattern = regexp.MustCompile(`^type (\w+) hook (\w+) priority ([a-z]*) ?([+-]?) ?(\d*)$`)

// shapes returns the shapes of all sets and chains in a ruleset's text.
func shapes(text string) (sets map[string]setShape, chains map[string]chainShape, err error) {
	sets, chains = map[string]setShape{}, map[string]chainShape{}
	for _, m := range blockPattern.FindAllStringSubmatch(text, -1) {
		kind, name, lines := m[1], m[2], strings.FieldsFunc(m[3], func(r rune) bool { return r == '\n' || r == ';' })
		if kind == "chain" {
			chains[name], err = parseChainShape(lines)
		} else {
			sets[name], err = parseSetShape(kind == "map", lines)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s %s: %w", kind, name, err)
		}
	}
	return sets, chains, nil
}

func parseSetShape(isMap bool, lines []string) (s setShape, err error) {
	if isMap {
		s.flags = unix.NFT_SET_MAP
	}
	concatenated := false
	for _, line := range lines {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "type", "typeof":
			key, data, _ := strings.Cut(rest, " : ")
			concatenated = strings.Contains(key, " . ")
			if s.key, s.keyLen, err = parseTypes(key); err == nil && isMap {
				s.data, s.dataLen, err = parseTypes(data)
			}
			if err != nil {
				return s, err
			}
		case "flags":
			for flag := range strings.SplitSeq(rest, ",") {
				s.flags |= map[string]uint32{
					"interval": unix.NFT_SET_INTERVAL, "timeout": unix.NFT_SET_TIMEOUT, "dynamic": unix.NFT_SET_EVAL,
				}[strings.TrimSpace(flag)]
			}
		case "timeout":
			s.flags |= unix.NFT_SET_TIMEOUT
		case "counter":
			s.counter = true
		}
	}
	if concatenated && s.flags&unix.NFT_SET_INTERVAL != 0 {
		s.flags |= nftSetConcat
	}
	return s, nil
}

// parseTypes reads a type, or a concatenation of types. Each part of a concatenation is padded to four bytes.
func parseTypes(text string) (id, size uint32, err error) {
	parts := strings.Split(strings.TrimSpace(text), " . ")
	for _, part := range parts {
		name, _, _ := strings.Cut(strings.TrimSpace(part), " mod ")
		t, ok := setTypes[name]
		if !ok {
			return 0, 0, fmt.Errorf("type %q is unknown [add it to setTypes]", part)
		}
		if len(parts) > 1 {
			t.size = (t.size + 3) &^ 3
		}
		id, size = id<<6|t.id, size+t.size
	}
	return id, size, nil
}

func parseChainShape(lines []string) (c chainShape, err error) {
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "type ") {
			continue
		}
		m := hookPattern.FindStringSubmatch(line)
		if m == nil {
			return c, fmt.Errorf("cannot read %q", line)
		}
		hook, known := hooks[m[2]]
		base, named := priorities[m[3]]
		if !known || !named && m[3] != "" {
			return c, fmt.Errorf("cannot read %q", line)
		}
		offset, _ := strconv.ParseInt("0"+m[5], 10, 32) // m[5] has digits, or is empty
		if m[4] == "-" {
			offset = -offset
		}
		return chainShape{m[1], hook, base + int32(offset)}, nil
	}
	return c, nil
}

// A kernelSet is a set or map in the kernel.
type kernelSet struct {
	name      string
	anonymous bool // part of a rule, and removed with the rule
	shape     setShape
}

func parseSet(b []byte) (s kernelSet, err error) {
	number := func(b []byte) uint32 {
		if len(b) != 4 {
			return 0
		}
		return binary.BigEndian.Uint32(b)
	}
	err = netlink.Attributes(b, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_SET_NAME:
			s.name = text(b)
		case unix.NFTA_SET_FLAGS:
			flags := number(b)
			s.anonymous, s.shape.flags = flags&unix.NFT_SET_ANONYMOUS != 0, flags&shapeFlags
		case unix.NFTA_SET_KEY_TYPE:
			s.shape.key = number(b)
		case unix.NFTA_SET_KEY_LEN:
			s.shape.keyLen = number(b)
		case unix.NFTA_SET_DATA_TYPE:
			s.shape.data = number(b)
		case unix.NFTA_SET_DATA_LEN:
			s.shape.dataLen = number(b)
		case nftaSetExpr, nftaSetExpressions:
			s.shape.counter = true // our rulesets have no other expressions in sets
		}
		return nil
	})
	if s.shape.data == verdictType {
		s.shape.dataLen = 0
	}
	return s, err
}

// sets returns the sets and maps of the table, except anonymous sets.
func (t *Table) sets(ctx context.Context) (map[string]setShape, error) {
	all := map[string]setShape{}
	attrs := netlink.AppendText(nil, unix.NFTA_SET_TABLE, t.name)
	err := t.reader.dump(ctx, Inet, unix.NFT_MSG_GETSET, attrs, func() { clear(all) }, func(b []byte) error {
		s, err := parseSet(b)
		if !s.anonymous {
			all[s.name] = s.shape
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	return all, nil
}

// A difference lists the shapes that differ between a table in the kernel and a ruleset.
type difference struct {
	// moved has the base chains with another type, hook or priority. The load deletes and adds them in its transaction,
	// which is possible because no rule leads to a base chain.
	moved []string
	// conflict describes a set or chain that cannot become the ruleset's; "": there is none.
	conflict string
}

// compare compares the shapes in a ruleset's text with the kernel's. The load cannot find out by trying: an error of
// nft does not say whether a shape differs or nft was killed, refused or out of memory, and some kernels accept a set
// of another shape without an error.
func (t *Table) compare(ctx context.Context, text string, held []Chain) (d difference, err error) {
	sets, chains, err := shapes(text)
	if err != nil {
		return d, fmt.Errorf("read embedded ruleset: %w", err)
	}
	if held == nil {
		return d, nil // there is no table
	}
	kernel, err := t.sets(ctx)
	if err != nil {
		return d, err
	}
	for name, is := range kernel {
		if want, ok := sets[name]; ok && is != want {
			d.conflict = fmt.Sprintf("set %s is %+v, want %+v", name, is, want)
		}
	}
	for _, c := range held {
		want, declared := chains[c.Name]
		switch is := c.shape(); {
		case !declared || is == want:
		case c.Base:
			d.moved = append(d.moved, c.Name)
		default: // rules and maps may lead to this chain, and the kernel cannot add a hook to a chain
			d.conflict = fmt.Sprintf("chain %s has no hook", c.Name)
		}
	}
	return d, nil
}

func (c *Chain) shape() chainShape {
	if !c.Base {
		return chainShape{}
	}
	return chainShape{c.Type, c.Hook, c.Priority}
}

// hasChain reports whether chains has a chain of that name.
func hasChain(chains []Chain, name string) bool {
	return slices.ContainsFunc(chains, func(c Chain) bool { return c.Name == name })
}
