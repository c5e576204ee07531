package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/operate/settings"
)

// Settings returns the content of --settings-dir, one "KEY=value" a line. It returns "" without the flag. Equal texts
// mean equal settings.
func (f *Flags) Settings() (string, error) {
	if f.own.settingsDir == "" {
		return "", nil
	}
	var text strings.Builder
	dir := f.own.settingsDir
	// The kubelet replaces all files at once by changing this link.
	if now, err := filepath.EvalSymlinks(filepath.Join(dir, "..data")); err == nil {
		dir = now
	}
	for _, s := range settings.Of(settings.Agent) {
		data, err := os.ReadFile(filepath.Join(dir, s.Key))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("--settings-dir: %w", err)
		}
		if value := strings.TrimSpace(string(data)); value != "" { // else the flag counts
			fmt.Fprintf(&text, "%s=%s\n", s.Key, value)
		}
	}
	return text.String(), nil
}

// A givenFlag is a flag as the command line gave it.
type givenFlag struct {
	value   []string
	changed bool
}

// applySettings sets the flags from --settings-dir. A flag whose setting is gone gets its given value back.
func (f *Flags) applySettings() error {
	if f.own.settingsDir == "" {
		return nil
	}
	text, err := f.Settings()
	if err != nil {
		return err
	}
	for name, was := range f.given {
		if err := set(f.fs, name, was.value); err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
		f.fs.Lookup(name).Changed = was.changed
	}
	f.given = map[string]givenFlag{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		s, _ := settings.For(key)
		flag := f.fs.Lookup(s.Flag)
		f.given[s.Flag] = givenFlag{valueOf(flag), flag.Changed}
		if err := set(f.fs, s.Flag, []string{value}); err != nil {
			return fmt.Errorf("setting %s: %w", key, cmp.Or(s.Check(value), err)) // Check's words are not Go's
		}
	}
	return nil
}

// valueOf returns the value of a flag: one text, or the elements of a list.
func valueOf(f *pflag.Flag) []string {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	return []string{f.Value.String()}
}

// set sets a flag. It replaces a list, because Set would append to it.
func set(fs *pflag.FlagSet, name string, values []string) error {
	if err := fs.Set(name, strings.Join(values, ",")); err != nil {
		return err
	}
	if list, ok := fs.Lookup(name).Value.(pflag.SliceValue); ok {
		return list.Replace(split(values))
	}
	return nil
}

// split returns the elements of lists with commas between them.
func split(values []string) (all []string) {
	for _, v := range values {
		for one := range strings.SplitSeq(v, ",") {
			if one = strings.TrimSpace(one); one != "" {
				all = append(all, one)
			}
		}
	}
	return all
}
