package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/cli"
	"github.com/fairway-net/fairway/internal/text"
)

// pathFlags have paths as values. In a configuration file, a path is relative to the directory of the file. On the
// command line, it is relative to the working directory.
var pathFlags = []string{"deploy", "image", "images-dir", "kube-proxy", "cni-plugins"}

// readConfig sets the flags of cmd to the fields of file. A flag on the command line has precedence.
func readConfig(cmd *cobra.Command, file string) error {
	if file == "" {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	var fields map[string]any
	if err := yaml.UnmarshalStrict(data, &fields); err != nil {
		return fmt.Errorf("--config %s: %w", file, err)
	}
	known := slices.DeleteFunc(cli.FlagNames(cmd), func(name string) bool { return name == "config" })
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(known, name) {
			advice := cmd.CommandPath() + " --help lists them"
			if near := text.Closest(name, known); near != "" {
				advice = "did you mean " + near + "?"
			}
			return fmt.Errorf("--config %s: no flag %q [%s]", file, name, advice)
		}
		if cmd.Flags().Changed(name) {
			continue
		}
		values, ok := fields[name].([]any)
		if !ok {
			values = []any{fields[name]}
		}
		for _, value := range values {
			setting := fmt.Sprint(value)
			if slices.Contains(pathFlags, name) && setting != "" && !filepath.IsAbs(setting) {
				setting = filepath.Join(filepath.Dir(file), setting)
			}
			if err := cmd.Flags().Set(name, setting); err != nil {
				return fmt.Errorf("--config %s: %s: %w", file, name, err)
			}
		}
	}
	return nil
}

// makeAbsolute makes the paths absolute, because processes of the lab have other working directories.
func makeAbsolute(cmd *cobra.Command) error {
	for _, name := range pathFlags {
		value := cmd.Flags().Lookup(name).Value
		if value.String() == "" {
			continue
		}
		abs, err := filepath.Abs(value.String())
		if err == nil {
			err = value.Set(abs)
		}
		if err != nil {
			return fmt.Errorf("--%s %s: %w", name, value, err)
		}
	}
	return nil
}
