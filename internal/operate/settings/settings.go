// Package settings is the registry of the settings of Fairway on a cluster. A setting is a key of the ConfigMap
// kube-system/fairway-agent, and a flag of one or more programs.
//
//	                ┌─▶ flags' help texts, and the programs' values at the start and while they run
//	All (registry) ─┼─▶ deploy/agent/config.yaml, docs/settings.md          (go test ./cmd/fairway -run TestSettings -update)
//	                ├─▶ fairway install --set KEY=VALUE: completion, checks  (operate/install)
//	                └─▶ values.yaml and values.schema.json of the chart      (hack/chart)
//
// An absent key and an empty value both mean the default. A test compares the registry with the flags of every program
// that runs in the cluster, so a flag without a setting needs an entry in Internal, with the reason.
package settings

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The programs that run in the cluster. The workload of a program is fairway-PROGRAM.
const (
	Agent      = "agent"
	Controller = "controller"
	Speaker    = "speaker"
	DNS        = "dns"
	Gateway    = "gateway"
	Names      = "names" // fairway names sync
)

// Programs returns the programs, in the order of docs/settings.md.
func Programs() []string { return []string{Agent, Controller, Speaker, DNS, Gateway, Names} }

// A Kind is the form of a value.
type Kind int

// The kinds of values.
const (
	Text     Kind = iota
	Bool          // true or false
	Number        // an integer, 0 or more
	Duration      // as 1m30s
	Word          // one of Setting.Words
	CIDRs         // prefixes with commas between them, or Setting.Words
	Address       // ip, ip:port, node or node:port
)

// A Setting is one entry of the registry.
type Setting struct {
	Key      string
	Flag     string   // without dashes; the same in each of the programs
	Programs []string // the programs that read it
	Kind     Kind
	Words    []string // the allowed values of a Word; the words among CIDRs
	Default  string   // what a program of deploy/ does without the key
	About    string   // one sentence. It is the flag's help text, with a `name` of the value in backquotes
	Needs    []string // components of deploy/components; without all of them the setting has no effect
	Main     bool     // whether deploy/agent/config.yaml has the key
}

// For returns the setting with a key.
func For(key string) (Setting, bool) {
	i := slices.IndexFunc(All, func(s Setting) bool { return s.Key == key })
	if i < 0 {
		return Setting{}, false
	}
	return All[i], true
}

// Of returns the settings of a program.
func Of(program string) (all []Setting) {
	for _, s := range All {
		if slices.Contains(s.Programs, program) {
			all = append(all, s)
		}
	}
	return all
}

// Keys returns all keys, sorted.
func Keys() []string {
	keys := make([]string, len(All))
	for i, s := range All {
		keys[i] = s.Key
	}
	slices.Sort(keys)
	return keys
}

// Defaults returns the data of deploy/agent/config.yaml.
func Defaults() map[string]string {
	values := map[string]string{}
	for _, s := range All {
		if s.Main {
			values[s.Key] = s.Default
		}
	}
	return values
}

// Usage returns the help text of a program's flag.
func Usage(program, flag string) string {
	for _, s := range Of(program) {
		if s.Flag == flag {
			return s.About
		}
	}
	panic("no setting has the flag --" + flag + " of fairway " + program)
}

// SplitPairs reads the values of --set: "KEY=VALUE" each, or several with commas between them. A value may have commas,
// too, as lists of CIDRs have.
func SplitPairs(all []string) (map[string]string, error) {
	pairs := map[string]string{}
	for _, text := range all {
		for one := range strings.SplitSeq(nextPair.ReplaceAllString(text, "\n$1"), "\n") {
			key, value, ok := strings.Cut(one, "=")
			if !ok {
				return nil, fmt.Errorf("--set %s: write KEY=VALUE", one)
			}
			pairs[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return pairs, nil
}

// nextPair matches the comma in front of a further pair.
var nextPair = regexp.MustCompile(`,\s*([A-Z][A-Z0-9_]*=)`)

// Allowed returns the values to choose from, or nil if there are too many to list.
func (s Setting) Allowed() []string {
	if s.Kind == Bool {
		return []string{"true", "false"}
	}
	return s.Words
}

// OrDefault returns the default in place of an empty value, for settings with few values. Other settings may be empty.
func (s Setting) OrDefault(value string) string {
	if value == "" && (s.Kind == Bool || s.Kind == Word) {
		return s.Default
	}
	return value
}

// Meaning returns About as a page prints it: without backquotes, without the default, and without the empty value, which
// means the default of a setting.
func (s Setting) Meaning() string {
	return strings.TrimSpace(ofFlags.ReplaceAllString(strings.ReplaceAll(s.About, "`", ""), ""))
}

var ofFlags = regexp.MustCompile(`\s*\(default [^)]*\)|; "" disables it`)

// Check returns why no program would accept a value. It returns nil for an empty value.
func (s Setting) Check(value string) error {
	if value == "" {
		return nil
	}
	ok, want := true, ""
	switch s.Kind {
	case Bool, Word:
		ok, want = slices.Contains(s.Allowed(), value), "one of "+strings.Join(s.Allowed(), ", ")
	case Number:
		n, err := strconv.ParseInt(value, 10, 32)
		ok, want = err == nil && n >= 0, "a number, 0 or more"
	case Duration:
		d, err := time.ParseDuration(value)
		ok, want = err == nil && d >= 0, "a duration, as 1m30s"
	case CIDRs:
		want = "prefixes with commas between them, as 10.244.0.0/16"
		if len(s.Words) > 0 {
			want += ", or words: " + strings.Join(s.Words, ", ")
		}
		for one := range strings.SplitSeq(value, ",") {
			one = strings.TrimSpace(one)
			_, err := netip.ParsePrefix(one)
			ok = ok && (err == nil || slices.Contains(s.Words, one))
		}
	case Address:
		ok, want = isAddress(value), "an address: IP, IP:port, or node or node:port for the address of each node"
	}
	if !ok {
		return fmt.Errorf("%q is not %s", value, want)
	}
	return nil
}
