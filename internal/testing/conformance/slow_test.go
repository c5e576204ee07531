package conformance

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
)

// slow is the obvious datapath. It has a rule for each frontend and scope, writes the whole ruleset as text for every
// change, and keeps no state. It stores its table in the comments of rules, so that another instance finds it.
//
// It exists to be broken: bug names its error.
type slow struct {
	bug  string
	fail func() error
	last *service.Table
}

func (s *slow) Info() datapath.Info {
	return datapath.Info{Name: "slow", Capabilities: datapath.Capabilities{
		Algorithms: service.AlgorithmsOf(service.Random), Protocols: []api.Proto{api.TCP, api.UDP, api.SCTP},
	}}
}
func (s *slow) Probe(context.Context) error { return nil }
func (s *slow) Counts(context.Context) (map[api.PortName]datapath.Count, error) {
	return nil, nil
}
func (s *slow) EndFlows(context.Context, []flow.Flow) (flow.Result, error) {
	return flow.Result{}, nil
}
func (s *slow) Drain(ctx context.Context) (bool, error) { return true, s.Cleanup(ctx) }
func (s *slow) Adopt(ctx context.Context) (datapath.Adopted, error) {
	held, err := s.read(ctx)
	return datapath.Adopted{Table: held, Found: err == nil && held.Settings.NodePorts != nil}, err
}
func (s *slow) Explain(ctx context.Context, k service.Key) ([]datapath.Object, error) {
	held, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	var all []datapath.Object
	for f := range held.Frontends() {
		if f.Key() == k && !s.has("explains nothing") {
			all = append(all, datapath.Object{Kind: "rule", Name: "inet slow held", Text: strings.Join(f.Lines(), "\n")})
		}
	}
	return all, nil
}
func (s *slow) Ejected(context.Context) ([]datapath.Ejection, error) { return nil, nil }
func (s *slow) Close()                                               { s.last = nil }
func (s *slow) FailWrites(f func() error)                            { s.fail = f }
func (s *slow) has(bug string) bool                                  { return s.bug == bug }
func (s *slow) either(bug, a, b string) string {
	if s.has(bug) {
		return a
	}
	return b
}

func (s *slow) Sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	held, err := s.read(ctx)
	if err != nil {
		return datapath.Stats{}, err
	}
	changes := service.Diff(held, want)
	stats := datapath.Stats{Frontends: len(changes), Added: len(changes), Full: true}
	s.last = want
	if len(changes) == 0 && held.Settings.Equal(want.Settings) && !s.has("writes again") {
		return stats, nil
	}
	stats.Added++ // possibly the settings
	const old = "table inet slow\ndelete table inet slow\n"
	if s.has("not atomic") {
		if err := s.write(ctx, old); err != nil {
			return stats, err
		}
	}
	if s.has("forgets flows") {
		_, _ = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4, everyFlow{})
	}
	return stats, s.write(ctx, old+s.render(want))
}

// everyFlow is a conntrack filter that matches all flows.
type everyFlow struct{}

func (everyFlow) MatchConntrackFlow(*netlink.ConntrackFlow) bool { return true }

func (s *slow) write(ctx context.Context, text string) error {
	if s.fail != nil {
		if err := s.fail(); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// record is the data in the comments.
type record struct {
	Settings  service.Settings
	Frontends []*service.Frontend
}

var comment = regexp.MustCompile(`comment "([^"]*)"`)

func (s *slow) Check(ctx context.Context) (drift datapath.Drift, err error) {
	held, err := s.read(ctx)
	if err != nil || s.last == nil || s.has("notices nothing") {
		return drift, err
	}
	drift.Rules = len(service.Diff(held, s.last)) > 0 || !held.Settings.Equal(s.last.Settings)
	return drift, nil
}

func (s *slow) read(ctx context.Context) (*service.Table, error) {
	out, err := exec.CommandContext(ctx, "nft", "list", "tables").Output()
	if err != nil {
		return nil, fmt.Errorf("nft list tables: %w", err)
	}
	if !bytes.Contains(out, []byte("table inet slow\n")) {
		return &service.Table{}, nil
	}
	out, err = exec.CommandContext(ctx, "nft", "list", "chain", "inet", "slow", "held").Output()
	if err != nil {
		return nil, fmt.Errorf("nft list chain: %w", err)
	}
	var text strings.Builder
	for _, m := range comment.FindAllSubmatch(out, -1) {
		text.Write(m[1])
	}
	data, err := base64.StdEncoding.DecodeString(text.String())
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, err
	}
	if s.has("dump forgets") && len(r.Frontends) > 0 {
		r.Frontends = r.Frontends[1:]
	}
	return service.NewTable(r.Settings, r.Frontends), nil
}

func (s *slow) Cleanup(ctx context.Context) error {
	text := "table inet slow\ndelete table inet slow\n"
	if s.has("cleanup leaves a table") {
		text += "table inet slow { chain held { } ; }\n"
	}
	return s.write(ctx, text)
}

func (s *slow) render(t *service.Table) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	masquerade := s.either("ports kept", "masquerade", "masquerade fully-random")
	var nat, filter, natOut, filterOut, hairpins []string
	for _, f := range t.Sorted() {
		nat = append(nat, s.rules(t, f, false, true)...)
		filter = append(filter, s.rules(t, f, false, false)...)
		if !s.has("node ignored") {
			natOut = append(natOut, s.rules(t, f, true, true)...)
			filterOut = append(filterOut, s.rules(t, f, true, false)...)
		}
		for _, e := range f.Internal.Endpoints {
			ip := family(e.Addr.Addr())
			if e.Local && !s.has("no hairpin") {
				hairpins = append(hairpins, fmt.Sprintf("%s saddr %v %s daddr %v ct status dnat %s", ip, e.Addr.Addr(), ip, e.Addr.Addr(), masquerade))
			}
		}
	}
	filter = slices.Concat(s.guards(t), filter, s.unserved(t))
	filterOut = slices.Concat(s.guards(t), filterOut, s.unserved(t))
	chain := func(name, hook string, rules []string) {
		line("  chain %s {\n    %s\n    %s\n  }", name, hook, strings.Join(rules, "\n    "))
	}
	line("table inet slow {")
	chain("pre", "type nat hook prerouting priority dstnat", nat)
	chain("out", "type nat hook output priority -100", natOut)
	chain("pre-no", "type filter hook prerouting priority -110", filter)
	chain("out-no", "type filter hook output priority -110", filterOut)
	if !s.has("invalid passes") {
		chain("forward", "type filter hook forward priority filter", append([]string{"ct state invalid drop"}, s.attracted(t)...))
	}
	chain("post", "type nat hook postrouting priority srcnat", append(hairpins, "mark and 0x4000 == 0x4000 "+masquerade))
	data, err := json.Marshal(record{t.Settings, t.Sorted()})
	if err != nil {
		panic(err)
	}
	var held []string
	for text := base64.StdEncoding.EncodeToString(data); text != ""; {
		n := min(len(text), 120)
		held = append(held, fmt.Sprintf(`counter comment "%s"`, text[:n]))
		text = text[n:]
	}
	chain("held", "", held)
	line("}")
	return b.String()
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "ip"
	}
	return "ip6"
}

// guards returns the rules that drop clients outside a frontend's Sources.
func (s *slow) guards(t *service.Table) (all []string) {
	for _, f := range t.Sorted() {
		if len(f.Sources) > 0 && !s.has("everyone may come in") {
			ip := family(f.Addr.Addr())
			all = append(all, fmt.Sprintf("%s daddr %v meta l4proto %d th dport %d ct state new %s saddr != %s drop",
				ip, f.Addr.Addr(), f.Proto, f.Addr.Port(), ip, prefixes(f.Sources, ip)))
		}
	}
	return all
}

// unserved returns the rules that refuse packets to addresses of Services that reach no frontend.
func (s *slow) unserved(t *service.Table) (all []string) {
	if s.has("unserved ports pass") {
		return nil
	}
	var reserved []string
	for _, f := range t.Sorted() {
		if f.NodePort() {
			continue
		}
		to := fmt.Sprintf("%s daddr %v", family(f.Addr.Addr()), f.Addr.Addr())
		all = append(all, fmt.Sprintf("%s meta l4proto %d th dport %d accept", to, f.Proto, f.Addr.Port()))
		if f.ClusterIP {
			reserved = append(reserved, to+" ct state new meta l4proto tcp reject with tcp reset", to+" ct state new reject")
		}
	}
	all = append(all, reserved...)
	for _, ip := range []string{"ip", "ip6"} {
		if set := prefixes(t.Settings.ServiceCIDRs, ip); set != "" {
			all = append(all, fmt.Sprintf("%s daddr %s ct state new drop", ip, set))
		}
	}
	return all
}

// attracted returns the rules that refuse forwarded packets to addresses of Services that no frontend has taken.
func (s *slow) attracted(t *service.Table) (all []string) {
	if s.has("unserved ports pass") {
		return nil
	}
	for _, f := range t.Sorted() {
		if f.OwnsAddress() {
			to := fmt.Sprintf("%s daddr %v ct state new", family(f.Addr.Addr()), f.Addr.Addr())
			all = append(all, to+" ct status confirmed drop", to+" meta l4proto tcp reject with tcp reset", to+" reject") // a confirmed one is older than the address
		}
	}
	return all
}

// rules returns the rules of a frontend at one hook: the NAT, or the refusal.
func (s *slow) rules(t *service.Table, f *service.Frontend, output, nat bool) []string {
	ip := family(f.Addr.Addr())
	if s.has("no IPv6") && ip == "ip6" || s.has("no UDP") && f.Proto == api.UDP || s.has("no SCTP") && f.Proto == api.SCTP {
		return nil
	}
	to := fmt.Sprintf("%s daddr %v", ip, f.Addr.Addr())
	if f.NodePort() {
		allowed := prefixes(t.Settings.NodePorts, ip)
		if allowed == "" {
			return nil
		}
		to = fmt.Sprintf("fib daddr type local %s daddr %s", ip, allowed)
		if s.has("NodePorts anywhere") {
			to = "fib daddr type local meta nfproto " + map[string]string{"ip": "ipv4", "ip6": "ipv6"}[ip]
		}
		to += fmt.Sprintf(" %s daddr != %s", ip, map[string]string{"ip": "127.0.0.0/8", "ip6": "::1"}[ip])
	}
	match := fmt.Sprintf("%s meta l4proto %d th dport %d ct state new", to, f.Proto, f.Addr.Port())
	pods := prefixes(t.Settings.Pods, ip)
	inside, outside := f.Internal, f.External
	if s.has("inside for all") {
		outside = inside
	}
	if output {
		return s.rule(match, inside, "", ip, nat)
	}
	var all []string
	if links := t.Settings.PodInterfaces; len(links) > 0 && !s.has("no interfaces") {
		in := fmt.Sprintf("iifname { %s }", quoted(links))
		all = s.rule(match+" "+in, podRoute(inside), "", ip, nat)
		match += " " + strings.Replace(in, "iifname", "iifname !=", 1)
	}
	if pods != "" {
		all = append(all, s.rule(fmt.Sprintf("%s %s saddr %s", match, ip, pods), inside, pods, ip, nat)...)
	}
	if pods != "" {
		match += fmt.Sprintf(" %s saddr != %s", ip, pods)
	}
	return append(all, s.rule(match, outside, pods, ip, nat)...)
}

func (s *slow) rule(match string, r *service.Route, pods, ip string, nat bool) []string {
	if nat != (r.Action == service.Forward) {
		return nil
	}
	switch r.Action {
	case service.Drop:
		return []string{match + s.either("drop is reject", " reject", " drop")}
	case service.Reject:
		if strings.Contains(match, fmt.Sprintf(" meta l4proto %d ", api.TCP)) && !s.has("reject is drop") {
			return []string{match + " reject with tcp reset"}
		}
		return []string{match + s.either("reject is drop", " drop", " reject")}
	}
	var all []string
	switch {
	case s.has("no masquerade"):
	case r.Masquerade == service.MasqueradeAll || s.has("masquerade for all"):
		all = append(all, match+" mark set mark or 0x4000")
	case r.Masquerade == service.MasqueradeOffCluster && pods != "":
		all = append(all, fmt.Sprintf("%s %s saddr != %s mark set mark or 0x4000", match, ip, pods))
	case r.Masquerade == service.MasqueradeOffCluster:
		all = append(all, match+" mark set mark or 0x4000")
	}
	eps := r.Endpoints
	if s.has("first endpoint only") {
		eps = eps[:1]
	}
	left := 0
	for _, e := range eps {
		left += s.weight(e)
	}
	for i, e := range eps {
		pick := ""
		if i < len(eps)-1 {
			if s.has("unfair") {
				left = 10
			}
			pick = fmt.Sprintf(" numgen random mod %d < %d", left, s.weight(e))
			left -= s.weight(e)
		}
		all = append(all, fmt.Sprintf("%s%s dnat %s to %v", match, pick, ip, e.Addr))
	}
	return all
}

func (s *slow) weight(e service.Endpoint) int {
	if s.has("weights ignored") {
		return 1
	}
	return int(max(e.Weight, 1))
}

// podRoute returns a route as it applies to pods. Pods are masqueraded only if all clients are.
func podRoute(r *service.Route) *service.Route {
	own := *r
	if own.Masquerade == service.MasqueradeOffCluster {
		own.Masquerade = service.MasqueradeHairpin
	}
	return &own
}

func quoted(names []string) string { return `"` + strings.Join(names, `", "`) + `"` }

// prefixes returns the set of prefixes of a family, or "" if there is none.
func prefixes(all []netip.Prefix, ip string) string {
	var out []string
	for _, p := range all {
		if family(p.Addr()) == ip {
			out = append(out, p.String())
		}
	}
	if len(out) == 0 {
		return ""
	}
	return "{ " + strings.Join(out, ", ") + " }"
}
