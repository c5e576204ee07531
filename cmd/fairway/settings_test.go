package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/operate/settings"
)

// workloads are the manifests of the programs that run in the cluster.
var workloads = map[string]string{
	settings.Agent: "agent/daemonset.yaml", settings.Controller: "components/controller/deployment.yaml",
	settings.Speaker: "components/load-balancer/speaker.yaml", settings.DNS: "dns/deployment.yaml",
	settings.Gateway: "components/gateway/daemonset.yaml", settings.Names: "components/names/deployment.yaml",
}

// commands are the commands of programs that have another name.
var commands = map[string][]string{settings.Names: {"names", "sync"}}

// programOf returns the command of a program.
func programOf(t *testing.T, program string) *cobra.Command {
	t.Helper()
	args := commands[program]
	if args == nil {
		args = []string{program}
	}
	c, _, err := newRoot(command.Env{Stdin: strings.NewReader(""), Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}}).Find(args)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestEveryFlagIsASetting: a flag of a program that runs in the cluster is a setting, or Internal says why it is none. The
// default of a setting is the manifest's, or else the flag's.
func TestEveryFlagIsASetting(t *testing.T) {
	unused := map[string]bool{}
	for name := range settings.Internal {
		unused[name] = true
	}
	for _, program := range settings.Programs() {
		manifest, err := os.ReadFile("../../deploy/" + workloads[program])
		if err != nil {
			t.Fatal(err)
		}
		programOf(t, program).LocalFlags().VisitAll(func(f *pflag.Flag) {
			i := slices.IndexFunc(settings.Of(program), func(s settings.Setting) bool { return s.Flag == f.Name })
			why := cmp.Or(settings.Internal[program+" "+f.Name], settings.Internal[f.Name])
			delete(unused, program+" "+f.Name)
			delete(unused, f.Name)
			switch {
			case f.Hidden: // kube-proxy's name of another flag, or without effect
			case i < 0 && why == "":
				t.Errorf("fairway %s --%s is no setting: add it to internal/operate/settings, to All or with the reason to Internal", program, f.Name)
			case i >= 0 && why != "":
				t.Errorf("fairway %s --%s is a setting and internal", program, f.Name)
			case i >= 0:
				s := settings.Of(program)[i]
				if have := defaultOf(f, s.Key, string(manifest)); !s.Main && have != s.Default {
					t.Errorf("%s: the default is %q, the registry has %q", s.Key, have, s.Default)
				}
			}
		})
		for _, s := range settings.Of(program) {
			own := program == settings.DNS && s.Key == "CLUSTER_CIDR" // internal/dns reads it
			if programOf(t, program).Flags().Lookup(s.Flag) == nil && !own {
				t.Errorf("%s: fairway %s has no flag --%s", s.Key, program, s.Flag)
			}
		}
	}
	for name := range unused {
		t.Errorf("Internal has %q, which is no flag", name)
	}
}

var inUsage = regexp.MustCompile(`\(default ([^)]*)\)`)

// defaultOf returns the value of a flag in a manifest, else the flag's default, else the one in its help text, unless it is
// only the setting's key.
func defaultOf(f *pflag.Flag, key, manifest string) string {
	if m := regexp.MustCompile(`(?m)^        - --` + f.Name + `=(\S+)$`).FindStringSubmatch(manifest); m != nil {
		value := pflag.NewFlagSet("", pflag.ContinueOnError)
		value.AddFlag(f)
		_ = value.Set(f.Name, m[1])
		return f.Value.String()
	}
	if f.DefValue != "" && f.DefValue != "[]" {
		return f.DefValue
	}
	if m := inUsage.FindStringSubmatch(f.Usage); m != nil && !strings.HasPrefix(m[1], "those") && m[1] != "$"+key {
		return m[1]
	}
	return ""
}

// TestSettingsAccept: a program accepts what Check accepts. Keys and names are unique.
func TestSettingsAccept(t *testing.T) {
	example := map[settings.Kind]string{
		settings.Bool: "true", settings.Number: "1", settings.Duration: "1m30s", settings.CIDRs: "192.0.2.0/24", settings.Address: "127.0.0.1:9",
	}
	seen := map[string]bool{}
	for _, s := range settings.All {
		if seen[s.Key] {
			t.Errorf("%s is there twice", s.Key)
		}
		seen[s.Key] = true
		values := append(slices.Clone(s.Words), cmp.Or(example[s.Kind], s.Default))
		if s.Kind == settings.Word {
			values = s.Words
		}
		for _, value := range values {
			if err := s.Check(value); err != nil {
				t.Errorf("%s: %v", s.Key, err)
			}
			for _, program := range s.Programs {
				fs := programOf(t, program).Flags()
				if err := fs.Set(s.Flag, value); fs.Lookup(s.Flag) != nil && err != nil {
					t.Errorf("%s: fairway %s: %v", s.Key, program, err)
				}
			}
		}
	}
}

// TestSettingsAreDocumented: docs/settings.md has every setting, and deploy/agent/config.yaml the main ones.
func TestSettingsAreDocumented(t *testing.T) {
	const page = "../../docs/settings.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- written by go test ./cmd/fairway -run TestSettings -update -->\n", "<!-- end -->"
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks %q", page, begin)
	}
	same(t, page, string(text), before+begin+settingsTables()+end+after)
	const namesPage = "../../docs/names-sync.md" // has a table of its own
	if text, err = os.ReadFile(namesPage); err != nil {
		t.Fatal(err)
	}
	before, rest, ok = strings.Cut(string(text), begin)
	if _, after, ok2 = strings.Cut(rest, end); !ok || !ok2 {
		t.Fatalf("%s lacks %q", namesPage, begin)
	}
	same(t, namesPage, string(text), before+begin+settingsTable(ofProgram(settings.Names))+end+after)
	const config = "../../deploy/agent/config.yaml"
	if text, err = os.ReadFile(config); err != nil {
		t.Fatal(err)
	}
	same(t, config, string(text), configMap())
	var read struct{ Data map[string]string }
	if err := yaml.Unmarshal([]byte(configMap()), &read); err != nil || fmt.Sprint(read.Data) != fmt.Sprint(settings.Defaults()) {
		t.Errorf("%v, %v", read.Data, err)
	}
}

func same(t *testing.T, path, have, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if have != want {
		t.Errorf("%s is not what the registry has: go test ./cmd/fairway -run TestSettings -update\n%s", path, want)
	}
}

// settingsTables are the tables of docs/settings.md: what several programs share, and a table for each program.
func settingsTables() string {
	var out strings.Builder
	names := map[string]string{settings.Agent: "The agents", settings.Controller: "The controllers", settings.Speaker: "The speakers", settings.DNS: "DNS", settings.Gateway: "The gateways"}
	table := func(title string, in func(settings.Setting) bool) {
		out.WriteString("### " + title + "\n\n" + settingsTable(in) + "\n")
	}
	table("Several programs", func(s settings.Setting) bool { return len(s.Programs) > 1 })
	for _, program := range settings.Programs() {
		if program != settings.Names {
			table(names[program], ofProgram(program))
		}
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// ofProgram chooses the settings of one program only.
func ofProgram(program string) func(settings.Setting) bool {
	return func(s settings.Setting) bool { return len(s.Programs) == 1 && s.Programs[0] == program }
}

// settingsTable is a table of settings.
func settingsTable(in func(settings.Setting) bool) string {
	var out strings.Builder
	out.WriteString("| key | flag | default | meaning |\n|---|---|---|---|\n")
	for _, s := range settings.All {
		if in(s) {
			fmt.Fprintf(&out, "| `%s` | `--%s` | %s | %s |\n", s.Key, s.Flag, quoted(s.Default), cell(s))
		}
	}
	return out.String()
}

func quoted(text string) string {
	if strings.Contains(text, "invalid") {
		return "**must be set**"
	}
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// cell is the meaning of a setting in a table.
func cell(s settings.Setting) string {
	text := s.Meaning()
	if len(s.Programs) > 1 {
		text += ". Read by " + strings.Join(s.Programs, ", ")
	}
	if words := s.Words; words != nil && !strings.Contains(text, words[0]) {
		text += ". One of `" + strings.Join(words, "`, `") + "`"
	}
	if s.Needs != nil {
		text += ". Component: `" + strings.Join(s.Needs, "`, `") + "`"
	}
	return strings.ReplaceAll(text, "|", `\|`)
}

// configMap is deploy/agent/config.yaml.
func configMap() string {
	var out strings.Builder
	out.WriteString(`# Settings of Fairway. Any other key of docs/settings.md may be added. A change takes effect on each node within two
# minutes; a value that does not work there is refused, and ` + "`fairway status`" + ` and an event say so.
#
# Written by go test ./cmd/fairway -run TestSettings -update, from internal/operate/settings.
apiVersion: v1
kind: ConfigMap
metadata:
  name: fairway-agent
  namespace: kube-system
  labels:
    app.kubernetes.io/name: fairway-agent
data:
`)
	for i, s := range settings.All {
		if !s.Main {
			continue
		}
		if i > 0 {
			out.WriteString("\n")
		}
		line := "  #"
		for word := range strings.FieldsSeq(strings.ReplaceAll(cell(s), "`", "") + ".") {
			if len(line)+1+len(word) > 100 {
				out.WriteString(line + "\n")
				line = "  #"
			}
			line += " " + word
		}
		value, _ := yaml.Marshal(s.Default)
		fmt.Fprintf(&out, "%s\n  %s: %s", line, s.Key, value)
	}
	return out.String()
}
