package service_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Ten times as many objects in a Service cost about ten times the work, so no tenant can keep a node's only programming
// loop busy for long. The test counts executed statements (with the counters of go build -cover) and allocations, and
// measures no time. The limit leaves room for sorting. Its work grows at most by a factor of 13.3 from 1,000 to 10,000
// items.
func TestGrowth(t *testing.T) {
	const most = 15
	dir := t.TempDir()
	program := filepath.Join(dir, "growth")
	run(t, "go", "build", "-cover", "-covermode=atomic", "-coverpkg=./,./testdata/growth", "-o", program, "./testdata/growth")
	covdata := strings.TrimSpace(string(run(t, "go", "tool", "-n", "covdata")))
	allocations := map[string]float64{}
	lines := bufio.NewScanner(bytes.NewReader(run(t, program, dir)))
	var names []string
	for lines.Scan() {
		name, allocs, _ := cutLast(lines.Text())
		allocations[name], _ = strconv.ParseFloat(allocs, 64)
		name, _, _ = cutLast(name)
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) < 5 {
		t.Fatalf("only %q were measured", names)
	}
	slices.Sort(names)
	for _, name := range names {
		var work, allocs [4]float64
		for i, size := range []int{10, 100, 1000, 10_000} {
			work[i] = executions(t, covdata, filepath.Join(dir, name, fmt.Sprint(size)))
			allocs[i] = allocations[fmt.Sprint(name, " ", size)]
			if work[i] == 0 || i > 0 && (work[i] > most*work[i-1] || allocs[i] > most*(allocs[i-1]+10)) {
				t.Errorf("%d %s cost more than %d times as much as a tenth of that", size, name, most)
			}
		}
		t.Logf("%-42s statements %9.0f %9.0f %9.0f %9.0f, allocations %5.0f %5.0f %6.0f %6.0f",
			name, work[0], work[1], work[2], work[3], allocs[0], allocs[1], allocs[2], allocs[3])
	}
}

// executions returns the number of executed statements, from the counters in a directory.
func executions(t *testing.T, covdata, dir string) (sum float64) {
	t.Helper()
	out := filepath.Join(dir, "text")
	run(t, covdata, "textfmt", "-i="+dir, "-o="+out)
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		// file.go:12.3,15.4 STATEMENTS COUNT
		rest, count, ok := cutLast(line)
		_, statements, _ := cutLast(rest)
		if !ok || !strings.Contains(line, ":") || strings.HasPrefix(line, "mode:") || strings.Contains(line, "/growth/") {
			continue
		}
		n, err1 := strconv.ParseFloat(count, 64)
		s, err2 := strconv.ParseFloat(statements, 64)
		if err1 != nil || err2 != nil {
			t.Fatalf("a line of counters: %q", line)
		}
		sum += n * s
	}
	return sum
}

func cutLast(line string) (before, after string, ok bool) {
	i := strings.LastIndex(line, " ")
	if i < 0 {
		return "", line, false
	}
	return line[:i], line[i+1:], true
}

func run(t *testing.T, argv ...string) []byte {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, &stderr)
	}
	return out
}
