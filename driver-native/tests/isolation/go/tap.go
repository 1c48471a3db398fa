// Package tap prints results in the Test Anything Protocol: what runtimetest asks of the library of this name, which
// Debian does not have.
package tap

import (
	"encoding/json"
	"fmt"
)

// T prints results, numbered from 1.
type T struct {
	count *int
	todo  bool
}

// New begins with no result.
func New() *T {
	return &T{count: new(int)}
}

// Header prints the version. The plan comes last, so the number of tests is not looked at.
func (t *T) Header(int) {
	fmt.Println("TAP version 13")
}

// Ok prints one result.
func (t *T) Ok(passed bool, description string) {
	word, directive := "ok", ""
	if !passed {
		word = "not ok"
	}
	if t.todo {
		directive = " # TODO"
	}
	*t.count++
	fmt.Printf("%s %d - %s%s\n", word, *t.count, description, directive)
}

// Pass prints a success.
func (t *T) Pass(description string) {
	t.Ok(true, description)
}

// Fail prints a failure.
func (t *T) Fail(description string) {
	t.Ok(false, description)
}

// Skip prints that count tests were not run.
func (t *T) Skip(count int, description string) {
	for ; count > 0; count-- {
		*t.count++
		fmt.Printf("ok %d # SKIP %s\n", *t.count, description)
	}
}

// Todo is the same printer for results that are known to fail.
func (t *T) Todo() *T {
	return &T{count: t.count, todo: true}
}

// YAML prints what belongs to the result before it, as JSON, which is YAML.
func (t *T) YAML(value interface{}) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	fmt.Printf("  ---\n  %s\n  ...\n", text)
	return nil
}

// AutoPlan prints how many results there were.
func (t *T) AutoPlan() {
	fmt.Printf("1..%d\n", *t.count)
}
