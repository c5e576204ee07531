package nft

import (
	"context"
	"encoding/binary"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

// The shape of a set or of a base chain is what the kernel cannot change while it exists.
// A program is compared with the kernel's shapes before it is loaded: an error of nft does
// not say whether the kernel holds another shape, or nft was killed, refused or out of
// memory, and some kernels take a set of another shape without an error.

// A setShape is the shape of a set or map, as nft tells it to the kernel.
type setShape struct {
	flags   uint32 // of shapeFlags
	key     uint32 // the numbers of its types, six bits for each
	keyLen  uint32
	data    uint32
	dataLen uint32 // 0 for verdicts, whose size is the kernel's business
	counter bool
}

// shapeFlags are the flags of a set that make its shape.
const shapeFlags = unix.NFT_SET_INTERVAL | unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL | nftSetConcat

// nftSetConcat is NFT_SET_CONCAT, which x/sys/unix lacks.
const nftSetConcat = 0x80

// A chainShape is the shape of a chain: the zero value is a chain without a hook.
type chainShape struct {
	kind     string // filter, nat, route
	hook     uint32
	priority int32
}

// verdictType is the number of nft's type verdict.
const verdictType = 0xffffff00

// setTypes are nft's types: their numbers, which never change because the kernel stores
// them, and their sizes in bytes. Expressions are what typeof is used with.
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

// priorities are nft's names in family inet.
var priorities = map[string]int32{"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100}

var hooks = map[string]uint32{
	"prerouting": unix.NF_INET_PRE_ROUTING, "input": unix.NF_INET_LOCAL_IN, "forward": unix.NF_INET_FORWARD,
	"output": unix.NF_INET_LOCAL_OUT, "postrouting": unix.NF_INET_POST_ROUTING,
}

// blockPattern matches a whole set, map or chain in a program: kind, name and contents.
var blockPattern = regexp.MustCompile(`(?ms)^\t(set|map|chain) (\S+) \{\n(.*?)^\t\}`)

// hookPattern matches the first line of a base chain.
var hookPattern = regexp.MustCompile(`^type (\w+) hook (\w+) priority ([a-z]*) ?([+-]?) ?(\d*)$`)

// shapes returns the shapes of the sets and chains that a program's text declares.
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

// parseTypes reads one type, or a concatenation, whose parts are padded to four bytes.
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
		offset, _ := strconv.ParseInt("0"+m[5], 10, 32) // digits, or none
		if m[4] == "-" {
			offset = -offset
		}
		return chainShape{m[1], hook, base + int32(offset)}, nil
	}
	return c, nil
}

// A kernelSet is a set or map that the kernel holds.
type kernelSet struct {
	name      string
	anonymous bool // a part of a rule, which is removed with it
	shape     setShape
}

// parseSet reads a set.
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
			s.shape.counter = true // the only one that programs of ours have
		}
		return nil
	})
	if s.shape.data == verdictType {
		s.shape.dataLen = 0
	}
	return s, err
}

// NFTA_SET_EXPR and NFTA_SET_EXPRESSIONS, which x/sys/unix lacks.
const (
	nftaSetExpr        = 17
	nftaSetExpressions = 18
)

// sets returns the sets and maps of the table. Anonymous sets are left out.
func (t *Table) sets(ctx context.Context) (map[string]setShape, error) {
	all := map[string]setShape{}
	err := t.reader.dump(ctx, Inet, unix.NFT_MSG_GETSET, netlink.AppendText(nil, unix.NFTA_SET_TABLE, t.name), func() { clear(all) }, func(b []byte) error {
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

// A difference is how the table differs from a program in shape.
type difference struct {
	// moved are base chains that are at another place in the kernel. They can be deleted
	// and added in the transaction that empties all chains, because nothing leads to them.
	moved []string
	// reason says what the table cannot become in place; empty: nothing.
	reason string
}

// compare compares the shapes of a program with what the kernel holds.
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
			d.reason = fmt.Sprintf("set %s is %+v, want %+v", name, is, want)
		}
	}
	for _, c := range held {
		want, declared := chains[c.Name]
		switch is := c.shape(); {
		case !declared || is == want:
		case c.Base:
			d.moved = append(d.moved, c.Name)
		default: // rules and maps may lead to it, and a hook cannot be added
			d.reason = fmt.Sprintf("chain %s has no hook", c.Name)
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
