package dns

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/text"
)

// A Report is the result of Check.
type Report struct {
	Servers []ServerBlock
	Errors  []string // the reasons why the Corefile cannot be served; empty if it can
	Notes   []string // hints for a pod of the Deployment fairway-dns
}

// A ServerBlock has the zones of one block and its plugins, in the order in which a query passes them.
type ServerBlock struct {
	Zones   string
	Plugins []Directive
}

// A Directive is a plugin with the arguments on its line, without its block in braces.
type Directive struct {
	At   string // file and line
	Text string
}

// Check reports what a server would do with a Corefile and the zones of cfg, without serving it. It sets up CoreDNS's
// plugins, so the process must not run a Server.
func Check(cfg Config, path string, data []byte) Report {
	defer captureLog(slog.New(slog.DiscardHandler))()
	blocks, err := parseBlocks(path, data)
	if err != nil {
		return Report{Errors: []string{err.Error()}}
	}
	own := blocks
	r := Report{Errors: unknownPlugins(path, own)}
	for _, b := range blocks {
		r.Servers = append(r.Servers, ServerBlock{strings.Join(b.Keys, " "), directives(path, b)})
	}
	if block := New(cfg).zoneBlock(); block != "" {
		zones, err := parseBlocks("--zone", []byte(block))
		if err != nil {
			return Report{Errors: []string{err.Error()}}
		}
		all := directives("", zones[0])
		for i := range all {
			all[i].At = "--zone"
		}
		r.Servers = append(r.Servers, ServerBlock{strings.Join(zones[0].Keys, " "), all})
		blocks, data = append(blocks, zones...), append(bytes.TrimRight(data, "\n"), block...)
	}
	r.Errors = append(r.Errors, duplicateZones(blocks)...)
	if len(r.Errors) == 0 {
		if err := setUp(path, data); err != nil {
			r.Errors = append(r.Errors, located(r.Servers, err.Error()))
		}
	}
	if len(r.Errors) == 0 {
		r.Notes = notes(own, len(cfg.Zones) > 0)
	}
	return r
}

// located puts file and line of the plugin in front of its error, if one line uses the plugin.
func located(servers []ServerBlock, message string) string {
	m := pluginError.FindStringSubmatch(message)
	if m == nil {
		return message
	}
	var at []string
	for _, s := range servers {
		for _, d := range s.Plugins {
			if strings.Fields(d.Text)[0] == m[1] {
				at = append(at, d.At)
			}
		}
	}
	if len(at) != 1 {
		return message
	}
	return at[0] + ": " + message
}

var pluginError = regexp.MustCompile(`^plugin/(\w+): `)

// setUp lets every plugin read its block, and starts none.
func setUp(path string, data []byte) error {
	register()
	// The kubernetes plugin connects to the cluster after reading its block, and fails if there is none. So it comes
	// last, after all others have read their blocks.
	order := append(slices.DeleteFunc(Plugins(), func(p string) bool { return p == "kubernetes" }), "kubernetes")
	if err := dnsserver.SetDirectives(order); err != nil {
		return fmt.Errorf("choose plugins: %w", err)
	}
	dnsserver.Port = fmt.Sprint(numbers.PortDNS)
	err := caddy.ValidateAndExecuteDirectives(caddy.CaddyfileInput{Filepath: path, Contents: data, ServerTypeName: "dns"}, nil, true)
	if err == nil || strings.Contains(err.Error(), "in-cluster configuration") {
		return nil
	}
	return text.OneLine(err)
}

// duplicateZones returns an error for each zone of two blocks. CoreDNS notices such a zone only when it serves.
func duplicateZones(blocks []caddyfile.ServerBlock) (errs []string) {
	seen := make(map[string]bool)
	for _, b := range blocks {
		for _, key := range b.Keys {
			proto, rest := parse.Transport(key)
			zones, port, err := plugin.SplitHostPort(rest)
			if err != nil {
				errs = append(errs, fmt.Sprintf("server block %q: %v", key, err))
				continue
			}
			if port == "" && proto == transport.DNS {
				port = fmt.Sprint(numbers.PortDNS)
			}
			for _, zone := range zones {
				id := fmt.Sprintf("%s://%s:%s", proto, plugin.Name(zone).Normalize(), port)
				if seen[id] {
					errs = append(errs, fmt.Sprintf("two server blocks have the zone %q [put their plugins into one]", key))
				}
				seen[id] = true
			}
		}
	}
	return errs
}

// unknownPlugins returns an error for each use of a plugin that is not built in, with file and line.
func unknownPlugins(path string, blocks []caddyfile.ServerBlock) (unknown []string) {
	known := Plugins()
	for _, b := range blocks {
		for _, d := range directives(path, b) {
			if name := strings.Fields(d.Text)[0]; !slices.Contains(known, name) {
				message := fmt.Sprintf("%s: plugin %q is not built in", d.At, name)
				if near := text.Closest(name, known); near != "" {
					message += " [did you mean " + near + "?]"
				}
				unknown = append(unknown, message)
			}
		}
	}
	return unknown
}

// directives returns the plugins of a block: first the built-in ones in their order, then the others by name.
func directives(path string, b caddyfile.ServerBlock) (all []Directive) {
	rank := func(name string) string {
		if i := slices.Index(Plugins(), name); i >= 0 {
			return fmt.Sprintf("%03d", i)
		}
		return "other " + name
	}
	names := make([]string, 0, len(b.Tokens))
	for name := range b.Tokens {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(rank(a), rank(b)) })
	for _, name := range names {
		all = append(all, uses(path, b.Tokens[name])...)
	}
	return all
}

// uses returns the uses of a directive from its tokens. A block may use a directive several times.
func uses(path string, tokens []caddyfile.Token) (all []Directive) {
	depth, line := 0, caddyfile.Token{Line: -1}
	for _, t := range tokens {
		switch {
		case t.Text == "{":
			depth++
		case t.Text == "}":
			depth--
		case depth > 0:
		case t.Line != line.Line || t.File != line.File:
			file := path
			if t.File != "" {
				file = t.File
			}
			all = append(all, Directive{fmt.Sprintf("%s:%d", file, t.Line), t.Text})
			line = t
		default:
			all[len(all)-1].Text += " " + t.Text
		}
	}
	return all
}

// has reports whether a block has a directive with all words.
func has(blocks []caddyfile.ServerBlock, name string, words ...string) bool {
	for _, b := range blocks {
		found := len(b.Tokens[name]) > 0
		for _, w := range words {
			found = found && slices.ContainsFunc(b.Tokens[name], func(t caddyfile.Token) bool { return t.Text == w })
		}
		if found {
			return true
		}
	}
	return false
}

// notes returns hints about a Corefile for a pod of deploy/dns. zones says whether --zone is set.
func notes(blocks []caddyfile.ServerBlock, zones bool) (all []string) {
	for _, n := range []struct {
		when bool
		text string
	}{
		{!has(blocks, "acl"), "no acl: every client that reaches the server is answered (the built-in Corefile answers private addresses and CLUSTER_CIDR)"},
		{!has(blocks, "reload"), "no reload: a change takes effect when the pods restart"},
		{!has(blocks, "health"), "no health: the liveness probe of deploy/dns asks it"},
		{!has(blocks, "ready"), "no ready: the readiness probe of deploy/dns asks it"},
		{!has(blocks, "prometheus"), "no prometheus: there are no metrics at port 9153"},
		{!has(blocks, "kubernetes"), "no kubernetes: names of Services are not answered"},
		{has(blocks, "kubernetes", "verified"), "kubernetes with `pods verified` reads pods: add the component dns-verified-pods"},
		{has(blocks, "names") && !zones, "names answers SERVFAIL without --zone"},
		{has(blocks, "autopath", "@kubernetes") && !has(blocks, "kubernetes", "verified"), "autopath @kubernetes does nothing without `pods verified` in the kubernetes block"},
	} {
		if n.when {
			all = append(all, n.text)
		}
	}
	return all
}

// WriteTo writes the report as text.
func (r Report) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	for _, s := range r.Servers {
		fmt.Fprintln(&b, s.Zones)
		for _, d := range s.Plugins {
			fmt.Fprintf(&b, "  %-50s %s\n", d.Text, d.At)
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintln(&b, "note:", n)
	}
	for _, e := range r.Errors {
		fmt.Fprintln(&b, "cannot serve:", e)
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}
