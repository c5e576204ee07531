package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

// A rule is one rule, in the part of iptables' language that this package uses. Its text is exactly the text that
// iptables-save prints, so that wanted rules and the kernel's rules can be compared as text.
type rule struct {
	src, dst, in          string // "10.96.0.1/32" or "veth+"; empty if any
	notSrc, notDst, notIn bool
	proto                 api.Proto // 0: any
	port                  uint16    // 0: any
	comment               string
	matches               string // other matches, as text
	jump                  string // the target with its options; empty if none
	unknown               bool   // the rule was read, and has words that this package does not write
}

// String returns the text behind "-A CHAIN".
func (r rule) String() string {
	var b strings.Builder
	word := func(not bool, option, value string) {
		if value != "" {
			if not {
				b.WriteString("! ")
			}
			b.WriteString(option + " " + value + " ")
		}
	}
	word(r.notSrc, "-s", r.src)
	word(r.notDst, "-d", r.dst)
	word(r.notIn, "-i", r.in)
	proto := lower(r.proto)
	word(false, "-p", proto)
	word(false, "-m comment --comment", xtables.Quote(r.comment))
	word(false, "-m", proto)
	if r.port != 0 {
		word(false, "--dport", strconv.Itoa(int(r.port)))
	}
	if r.matches != "" {
		b.WriteString(r.matches + " ")
	}
	word(false, "-j", r.jump)
	return strings.TrimSuffix(b.String(), " ")
}

// lower returns iptables' word for a protocol: "tcp". It is empty for 0.
func lower(p api.Proto) string {
	if p == 0 {
		return ""
	}
	return strings.ToLower(p.String())
}

// maxComment is a little less than the longest comment of iptables, in bytes.
const maxComment = 250

// truncate cuts off the end of a comment that is too long.
func truncate(comment string) string { return comment[:min(len(comment), maxComment)] }

// parse reads the text behind "-A CHAIN".
func parse(text string) rule {
	var r rule
	not, more := false, []string(nil)
	var all []string
	for w := range xtables.Words(text) {
		all = append(all, w.Text)
	}
	next := func(i int) string {
		if i+1 < len(all) {
			return all[i+1]
		}
		return ""
	}
	for i := 0; i < len(all); i++ {
		switch value := next(i); all[i] {
		case "!":
			not = true
			continue
		case "-s":
			r.src, r.notSrc = value, not
		case "-d":
			r.dst, r.notDst = value, not
		case "-i":
			r.in, r.notIn = value, not
		case "-p":
			p, err := api.ParseProto(value)
			r.proto, r.unknown = p, r.unknown || err != nil || not
		case "--comment":
			r.comment = value
		case "--dport":
			n, err := strconv.ParseUint(value, 10, 16)
			r.port, r.unknown = uint16(n), r.unknown || err != nil || not
		case "-j", "-g":
			r.jump, r.unknown = strings.Join(all[i+1:], " "), r.unknown || all[i] == "-g"
			i = len(all)
		case "-m":
			if value != "comment" && value != lower(r.proto) {
				more = append(more, "-m", value)
			}
		default:
			if not {
				more = append(more, "!")
			}
			more = append(more, all[i])
			i-- // unlike an option, it has no value
		}
		not = false
		i++
	}
	r.matches = strings.Join(more, " ")
	return r
}

// destination returns the address to which the rule applies. It is false if that is not one address.
func (r rule) destination() (netip.Addr, bool) {
	p, err := netip.ParsePrefix(r.dst)
	return p.Addr(), err == nil && !r.notDst && p.IsSingleIP()
}

// Matches.
const (
	toLocal   = "-m addrtype --dst-type LOCAL"
	fromLocal = "-m addrtype --src-type LOCAL"
	isNew     = "-m conntrack --ctstate NEW"
)

// chance returns the match of part of whole packets, at random. iptables counts in 2^31sts, so a third is
// 0.33333333349.
func chance(part, whole uint32) string {
	scaled := math.Round(float64(part) / float64(whole) * (1 << 31))
	return fmt.Sprintf("-m statistic --mode random --probability %.11f", scaled/(1<<31))
}

// nthMatch returns the match of each n-th packet.
func nthMatch(n int) string { return fmt.Sprintf("-m statistic --mode nth --every %d --packet 0", n) }

// hostCIDR returns the prefix of one address: "10.96.0.1/32".
func hostCIDR(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// link returns a pattern of interface names in iptables' words: "veth+" for "veth*".
func link(pattern string) string {
	if name, many := strings.CutSuffix(pattern, "*"); many {
		return name + "+"
	}
	return pattern
}
