// A page that says what went wrong.
import { themeSwitch } from "./shell.js";

themeSwitch();
