package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/command"
)

// The manifests and the program change in different files: every command line in
// deploy/ must be one that this program understands.
func TestCommandLinesInManifests(t *testing.T) {
	for _, path := range []string{"../../deploy/agent/daemonset.yaml", "../../deploy/dns/deployment.yaml", "../../deploy/components/controller/deployment.yaml", "../../deploy/components/load-balancer/speaker.yaml", "../../deploy/components/names/deployment.yaml"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := bytes.Cut(text, []byte("\n---\n"))
		var workload struct {
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Command []string                       `json:"command"`
							Env     []struct{ Name, Value string } `json:"env"`
						} `json:"containers"`
					} `json:"spec"`
				} `json:"template"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal(first, &workload); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		containers := workload.Spec.Template.Spec.Containers
		if len(containers) == 0 {
			t.Fatalf("%s has no containers", path)
		}
		for _, c := range containers {
			root := newRoot(command.Env{Stdin: strings.NewReader(""), Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}})
			if len(c.Command) < 2 || c.Command[0] != root.Name() {
				t.Errorf("%s: %q does not start with %q and a command", path, c.Command, root.Name())
				continue
			}
			for i, arg := range c.Command {
				for _, e := range c.Env {
					if e.Value != "" {
						arg = strings.ReplaceAll(arg, "$("+e.Name+")", e.Value)
					}
				}
				c.Command[i] = arg
			}
			cmd, args, err := root.Find(c.Command[1:])
			if err == nil {
				err = cmd.ParseFlags(args)
			}
			if err != nil || cmd == root {
				t.Errorf("%s: %q: %v", path, c.Command, err)
			}
		}
	}
}
